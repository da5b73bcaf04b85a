"""Horizontal bar charts as self-contained SVG."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from qkv.draw.line_chart import COLORS
from qkv.draw.text import escape_text, shorten, text_width
from qkv.draw.ticks import format_tick, linear_ticks

_ROW_HEIGHT, _BAR_HEIGHT, _RIGHT_MARGIN = 36, 18, 24
_MAX_NAME_LENGTH = 48


@dataclass(frozen=True)
class Bar:
    """A labeled value."""

    name: str
    value: float
    spread: tuple[float, float] | None = None
    """Lowest and highest of several values, drawn as an error bar."""


def bar_chart(rows: Sequence[Bar], title: str, axis: str = "", *, width: int = 860) -> str:
    """Return an SVG of bars from 0 in the given order, each with its name on the left and its value on the right.

    A value that is not finite is drawn as a name without a bar.
    """
    if width < 400:
        raise ValueError(f"width must be at least 400, got {width}")
    left = 32 + max((text_width(shorten(row.name, _MAX_NAME_LENGTH), 13) for row in rows), default=0)
    left, right = min(left, width / 2), width - _RIGHT_MARGIN - 56  # room for a value after the longest bar
    top, bottom = 52, 52 + _ROW_HEIGHT * len(rows)
    ends = [end for row in rows for end in (row.value, *(row.spread or ())) if math.isfinite(end)]
    ticks = linear_ticks(min(0.0, *ends, 0.0), max(0.0, *ends, 0.0)) if any(ends) else [0.0, 1.0]

    def x_of(value: float) -> float:
        return left + (right - left) * (value - ticks[0]) / (ticks[-1] - ticks[0])

    height = bottom + (58 if axis else 36)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" font-family="system-ui, sans-serif" font-size="13" fill="#1b1f24">',
        f"<title>{escape_text(title)}</title>",
        f'<rect class="paper" width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="28" font-size="16" font-weight="600">{escape_text(shorten(title, width // 9))}</text>',
        '<g class="grid" stroke="#e3e6ea">',
        *(f'<line x1="{x_of(t):.1f}" x2="{x_of(t):.1f}" y1="{top}" y2="{bottom + 5}"/>' for t in ticks),
        "</g>",
        '<g class="soft" fill="#5b6470" font-size="12" text-anchor="middle">',
        *(f'<text x="{x_of(t):.1f}" y="{bottom + 20}">{format_tick(t)}</text>' for t in ticks),
        f'<text x="{(left + right) / 2:.1f}" y="{bottom + 44}">{escape_text(axis)}</text>' if axis else "",
        "</g>",
    ]
    for number, row in enumerate(rows):
        middle = top + _ROW_HEIGHT * number + _ROW_HEIGHT / 2
        name = escape_text(shorten(row.name, _MAX_NAME_LENGTH))
        parts.append(f'<text x="{left - 12:.1f}" y="{middle:.1f}" dy="0.35em" text-anchor="end">{name}</text>')
        if math.isfinite(row.value):
            parts += _draw_bar(row, (x_of(0), x_of(row.value)), middle, COLORS[number % len(COLORS)])
            parts += _draw_spread(row, [x_of(end) for end in row.spread or ()], middle)
    return "\n".join([*(part for part in parts if part), "</svg>\n"])


def _draw_bar(row: Bar, ends: tuple[float, float], middle: float, color: str) -> list[str]:
    start, end = sorted(ends)
    return [
        f'<rect class="bar" x="{start:.1f}" y="{middle - _BAR_HEIGHT / 2:.1f}" width="{end - start:.1f}" '
        f'height="{_BAR_HEIGHT}" fill="{color}"><title>{escape_text(row.name)}: {row.value:.6g}</title></rect>'
    ]


def _draw_spread(row: Bar, ends: list[float], middle: float) -> list[str]:
    """Draw the error bar, if any, and the value at the right margin."""
    low, high = row.spread or (row.value, row.value)
    strokes = (
        [f'<path class="spread" stroke="#1b1f24" fill="none" d="{_whisker(ends, middle)}"/>'] if low < high else []
    )
    return [
        *strokes,
        f'<text class="soft" x="100%" dx="-{_RIGHT_MARGIN}" y="{middle:.1f}" dy="0.35em" text-anchor="end" '
        f'fill="#5b6470">{row.value:.3g}</text>',
    ]


def _whisker(ends: list[float], middle: float) -> str:
    low, high = ends
    cap = _BAR_HEIGHT / 4
    return (
        f"M{low:.1f} {middle - cap:.1f}V{middle + cap:.1f}M{low:.1f} {middle:.1f}H{high:.1f}"
        f"M{high:.1f} {middle - cap:.1f}V{middle + cap:.1f}"
    )
