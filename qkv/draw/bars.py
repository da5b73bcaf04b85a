"""Bars with names, one below the other, in one SVG file with no outside parts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from qkv.draw.curve import COLORS
from qkv.draw.text import safe, shorten, text_width
from qkv.draw.ticks import label, linear_ticks

_ROW, _THICK, _RIGHT = 36, 18, 24
_LONGEST = 48  # letters of a name


@dataclass(frozen=True)
class Bar:
    """A name and how long its bar is."""

    name: str
    value: float
    spread: tuple[float, float] | None = None
    """The lowest and highest of several values, drawn as a line over the bar's end."""


def bars(rows: Sequence[Bar], title: str, axis: str = "", *, width: int = 860) -> str:
    """An SVG of bars from 0, in the order given, each with its name before it and its number after it.

    A bar without a finite value has only its name.
    """
    if width < 400:
        raise ValueError(f"width must be at least 400, got {width}")
    left = 32 + max((text_width(shorten(row.name, _LONGEST), 13) for row in rows), default=0)
    left, right = min(left, width / 2), width - _RIGHT - 56  # room for a number after the longest bar
    top, bottom = 52, 52 + _ROW * len(rows)
    ends = [end for row in rows for end in (row.value, *(row.spread or ())) if math.isfinite(end)]
    ticks = linear_ticks(min(0.0, *ends, 0.0), max(0.0, *ends, 0.0)) if any(ends) else [0.0, 1.0]

    def place(value: float) -> float:
        return left + (right - left) * (value - ticks[0]) / (ticks[-1] - ticks[0])

    height = bottom + (58 if axis else 36)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" font-family="system-ui, sans-serif" font-size="13" fill="#1b1f24">',
        f"<title>{safe(title)}</title>",
        f'<rect class="paper" width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="28" font-size="16" font-weight="600">{safe(shorten(title, width // 9))}</text>',
        '<g class="grid" stroke="#e3e6ea">',
        *(f'<line x1="{place(t):.1f}" x2="{place(t):.1f}" y1="{top}" y2="{bottom + 5}"/>' for t in ticks),
        "</g>",
        '<g class="soft" fill="#5b6470" font-size="12" text-anchor="middle">',
        *(f'<text x="{place(t):.1f}" y="{bottom + 20}">{label(t)}</text>' for t in ticks),
        f'<text x="{(left + right) / 2:.1f}" y="{bottom + 44}">{safe(axis)}</text>' if axis else "",
        "</g>",
    ]
    for number, row in enumerate(rows):
        middle = top + _ROW * number + _ROW / 2
        name = safe(shorten(row.name, _LONGEST))
        parts.append(f'<text x="{left - 12:.1f}" y="{middle:.1f}" dy="0.35em" text-anchor="end">{name}</text>')
        if math.isfinite(row.value):
            parts += _draw_bar(row, (place(0), place(row.value)), middle, COLORS[number % len(COLORS)])
            parts += _draw_spread(row, [place(end) for end in row.spread or ()], middle)
    return "\n".join([*(part for part in parts if part), "</svg>\n"])


def _draw_bar(row: Bar, ends: tuple[float, float], middle: float, color: str) -> list[str]:
    start, end = sorted(ends)
    return [
        f'<rect class="bar" x="{start:.1f}" y="{middle - _THICK / 2:.1f}" width="{end - start:.1f}" '
        f'height="{_THICK}" fill="{color}"><title>{safe(row.name)}: {row.value:.6g}</title></rect>'
    ]


def _draw_spread(row: Bar, ends: list[float], middle: float) -> list[str]:
    """The line from lowest to highest with a stroke at each end, if there is one, and the number after all of it."""
    low, high = row.spread or (row.value, row.value)
    strokes = (
        [f'<path class="spread" stroke="#1b1f24" fill="none" d="{_whisker(ends, middle)}"/>'] if low < high else []
    )
    return [
        *strokes,
        f'<text class="soft" x="100%" dx="-{_RIGHT}" y="{middle:.1f}" dy="0.35em" text-anchor="end" '
        f'fill="#5b6470">{row.value:.3g}</text>',
    ]


def _whisker(ends: list[float], middle: float) -> str:
    low, high = ends
    cap = _THICK / 4
    return (
        f"M{low:.1f} {middle - cap:.1f}V{middle + cap:.1f}M{low:.1f} {middle:.1f}H{high:.1f}"
        f"M{high:.1f} {middle - cap:.1f}V{middle + cap:.1f}"
    )
