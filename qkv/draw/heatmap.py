"""Matrices as heat maps, side by side, in one SVG file with no outside parts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from qkv.draw.text import safe, shorten, text_width

_CELL = 22
_GAP = 28
_TOP = 64
_TITLE_SPACE = 24
_LONGEST_LABEL = 24


@dataclass(frozen=True)
class Panel:
    """One matrix: who looks (rows) at whom (columns)."""

    title: str
    values: Sequence[Sequence[float]]
    note: str = ""


def heatmaps(panels: Sequence[Panel], labels: Sequence[str], title: str) -> str:
    """An SVG of square matrices that share `labels`; positive is orange, negative blue.

    Each panel's colors go up to its own largest size, so that shapes can be compared where scales
    cannot. Every cell carries its number as a tooltip; one that is not finite is gray.
    """
    for panel in panels:
        if not _fits(panel, len(labels), len(labels)):
            raise ValueError(
                f"panel {panel.title!r} must be {len(labels)} x {len(labels)}, one row and column per label"
            )
    return _draw(panels, _Grid(labels, labels), title, len(panels))


def rectangles(
    panels: Sequence[Panel], rows: Sequence[str], columns: Sequence[str], title: str, per_line: int = 4
) -> str:
    """An SVG of matrices that share their rows (such as written tokens) and columns (such as what was read).

    Colors are those of `heatmaps`; after `per_line` panels a new line begins.
    """
    if per_line < 1:
        raise ValueError(f"per_line must be at least 1, got {per_line}")
    for panel in panels:
        if not _fits(panel, len(rows), len(columns)):
            came = f"{len(panel.values)} x {', '.join(sorted({str(len(row)) for row in panel.values})) or 0}"
            raise ValueError(
                f"panel {panel.title!r} must be {len(rows)} x {len(columns)}, one row per row label and one column "
                f"per column label, got {came}"
            )
    return _draw(panels, _Grid(rows, columns), title, per_line)


@dataclass(frozen=True)
class _Grid:
    """The labels of every panel, and the room they take."""

    rows: Sequence[str]
    columns: Sequence[str]

    @property
    def left(self) -> int:
        return 12 + round(max((text_width(shorten(label, _LONGEST_LABEL)) for label in self.rows), default=0))

    @property
    def width(self) -> int:
        return _CELL * len(self.columns)

    @property
    def height(self) -> int:
        return _CELL * len(self.rows)

    @property
    def upright(self) -> bool:
        """Whether the column labels are short enough to stand below their columns as they are."""
        return max((text_width(label) for label in self.columns), default=0) < _CELL

    @property
    def below(self) -> int:
        """Room for the column labels."""
        if self.upright:
            return 28
        longest = max(text_width(shorten(label, _LONGEST_LABEL)) for label in self.columns)
        return 20 + math.ceil(9 / 8 * longest)


def _fits(panel: Panel, rows: int, columns: int) -> bool:
    return len(panel.values) == rows and all(len(row) == columns for row in panel.values)


def _draw(panels: Sequence[Panel], grid: _Grid, title: str, per_line: int) -> str:
    title = shorten(title, 200)
    texts = [*((panel.title, 13) for panel in panels), *((panel.note, 12) for panel in panels)]
    # a narrow matrix must not let its title run into its neighbor's
    pitch = max(grid.width, *(round(text_width(text, size) * 0.9) for text, size in texts), 0) + _GAP
    lines = max(math.ceil(len(panels) / max(per_line, 1)), 1)
    line_height = _TITLE_SPACE + grid.height + grid.below
    width = grid.left + max(min(len(panels), per_line) * pitch, math.ceil(text_width(title, 16)) + 12)
    height = _TOP + lines * line_height + (lines - 1) * _GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" font-family="system-ui, sans-serif" font-size="13">',
        f"<title>{safe(title)}</title>",
        f'<rect class="paper" width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{grid.left}" y="24" font-size="16" font-weight="600">{safe(title)}</text>',
    ]
    for line in range(lines):
        top = _TOP + _TITLE_SPACE + line * (line_height + _GAP)
        parts += [
            f'<text x="{grid.left - 6}" y="{top + (row + 0.7) * _CELL:.1f}" text-anchor="end">'
            f"{safe(shorten(label, _LONGEST_LABEL))}</text>"
            for row, label in enumerate(grid.rows)
        ]
        for number, panel in enumerate(panels[line * per_line : (line + 1) * per_line]):
            parts += _draw_panel(panel, grid, grid.left + number * pitch, top)
    return "\n".join([*parts, "</svg>\n"])


def _draw_panel(panel: Panel, grid: _Grid, left: int, top: int) -> list[str]:
    sizes = (abs(value) for row in panel.values for value in row if math.isfinite(value))
    largest = max(sizes, default=0.0) or 1.0
    parts = [
        f'<text x="{left}" y="{top - 26}" font-weight="600">{safe(panel.title)}</text>',
        f'<text x="{left}" y="{top - 9}" fill="#5b6470" font-size="12">{safe(panel.note)}</text>',
    ]
    for i, row in enumerate(panel.values):
        for j, value in enumerate(row):
            tooltip = f"{grid.rows[i]} → {grid.columns[j]}: {value:.4f}"
            parts.append(
                f'<rect x="{left + j * _CELL}" y="{top + i * _CELL}" width="{_CELL}" height="{_CELL}" '
                f'fill="{_color(value / largest)}"><title>{safe(tooltip)}</title></rect>'
            )
    parts.append(
        f'<rect x="{left}" y="{top}" width="{grid.width}" height="{grid.height}" fill="none" stroke="#c5cad1" '
        'stroke-width="1"/>'
    )
    return parts + _draw_column_labels(grid, left, top + grid.height)


def _draw_column_labels(grid: _Grid, left: int, bottom: int) -> list[str]:
    if grid.upright:
        return [
            f'<text x="{left + (j + 0.5) * _CELL:.1f}" y="{bottom + 18}" text-anchor="middle">{safe(label)}</text>'
            for j, label in enumerate(grid.columns)
        ]
    return [
        f'<text transform="translate({left + (j + 0.3) * _CELL:.1f} {bottom + 8}) rotate(90)">'
        f"{safe(shorten(label, _LONGEST_LABEL))}</text>"
        for j, label in enumerate(grid.columns)
    ]


def _color(value: float) -> str:
    """White at 0, full orange at 1, full blue at -1."""
    if not math.isfinite(value):
        return "#b4b9c0"
    full = (201, 82, 10) if value >= 0 else (24, 92, 172)
    strength = min(abs(value), 1.0)
    return "#" + "".join(f"{round(255 + (channel - 255) * strength):02x}" for channel in full)
