"""Matrices as heat maps, side by side, in one SVG file with no outside parts."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_CELL = 22
_GAP = 28
_TOP = 64
_TITLE_SPACE = 24


@dataclass(frozen=True)
class Panel:
    """One matrix: who looks (rows) at whom (columns)."""

    title: str
    values: Sequence[Sequence[float]]
    note: str = ""


def heatmaps(panels: Sequence[Panel], labels: Sequence[str], title: str) -> str:
    """An SVG of square matrices that share `labels`; positive is orange, negative blue.

    Each panel's colours go up to its own largest size, so that shapes can be compared where scales
    cannot. Every cell carries its number as a tooltip.
    """
    for panel in panels:
        if any(len(row) != len(labels) for row in panel.values) or len(panel.values) != len(labels):
            raise ValueError(
                f"panel {panel.title!r} must be {len(labels)} x {len(labels)}, one row and column per label"
            )
    left = 12 + 8 * max(map(len, labels), default=0)
    side = _CELL * len(labels)
    width = left + len(panels) * (side + _GAP)
    height = _TOP + _TITLE_SPACE + side + 20 + 9 * max(map(len, labels), default=0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" font-family="system-ui, sans-serif" font-size="13">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{left}" y="24" font-size="16" font-weight="600">{escape(title)}</text>',
    ]
    top = _TOP + _TITLE_SPACE
    parts += [
        f'<text x="{left - 6}" y="{top + (row + 0.7) * _CELL:.1f}" text-anchor="end">{escape(label)}</text>'
        for row, label in enumerate(labels)
    ]
    for number, panel in enumerate(panels):
        parts += _draw_panel(panel, labels, left + number * (side + _GAP), top)
    return "\n".join([*parts, "</svg>\n"])


def _draw_panel(panel: Panel, labels: Sequence[str], left: int, top: int) -> list[str]:
    side = _CELL * len(labels)
    largest = max((abs(value) for row in panel.values for value in row), default=0.0) or 1.0
    parts = [
        f'<text x="{left}" y="{top - 26}" font-weight="600">{escape(panel.title)}</text>',
        f'<text x="{left}" y="{top - 9}" fill="#5b6470" font-size="12">{escape(panel.note)}</text>',
    ]
    for i, row in enumerate(panel.values):
        for j, value in enumerate(row):
            tooltip = f"{labels[i]} → {labels[j]}: {value:.4f}"
            parts.append(
                f'<rect x="{left + j * _CELL}" y="{top + i * _CELL}" width="{_CELL}" height="{_CELL}" '
                f'fill="{_colour(value / largest)}"><title>{escape(tooltip)}</title></rect>'
            )
    parts.append(
        f'<rect x="{left}" y="{top}" width="{side}" height="{side}" fill="none" stroke="#c5cad1" stroke-width="1"/>'
    )
    parts += [
        f'<text transform="translate({left + (j + 0.3) * _CELL:.1f} {top + side + 8}) rotate(90)">{escape(name)}</text>'
        for j, name in enumerate(labels)
    ]
    return parts


def _colour(value: float) -> str:
    """White at 0, full orange at 1, full blue at -1."""
    full = (201, 82, 10) if value >= 0 else (24, 92, 172)
    strength = min(abs(value), 1.0)
    return "#" + "".join(f"{round(255 + (channel - 255) * strength):02x}" for channel in full)
