"""Heat maps of matrices as self-contained SVG."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from qkv.draw.text import escape_text, shorten, text_width

_CELL = 22
_GAP = 28
_TOP = 64
_TITLE_SPACE = 24
_MAX_LABEL_LENGTH = 24


@dataclass(frozen=True)
class Panel:
    """A matrix with a title, such as attention weights: rows are queries, columns are keys."""

    title: str
    values: Sequence[Sequence[float]]
    note: str = ""


def heatmaps(panels: Sequence[Panel], labels: Sequence[str], title: str) -> str:
    """Return an SVG of square matrices that share `labels`; positive is orange, negative blue.

    Colors are scaled to the largest absolute value of each panel, so that patterns can be compared where scales differ.
    Every cell has its value as a tooltip; values that are not finite are gray.
    """
    for panel in panels:
        if not _fits(panel, len(labels), len(labels)):
            raise ValueError(
                f"panel {panel.title!r} must be {len(labels)} x {len(labels)}, one row and column per label"
            )
    return _draw(panels, _Grid(labels, labels), title, len(panels))


def rectangular_heatmaps(
    panels: Sequence[Panel], rows: Sequence[str], columns: Sequence[str], title: str, per_line: int = 4
) -> str:
    """Return an SVG of matrices that share row labels (such as target tokens) and column labels (source tokens).

    Colors are those of `heatmaps`; each line has `per_line` panels.
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
    """Labels of every panel, and the space they need."""

    rows: Sequence[str]
    columns: Sequence[str]

    @property
    def left(self) -> int:
        return 12 + round(max((text_width(shorten(label, _MAX_LABEL_LENGTH)) for label in self.rows), default=0))

    @property
    def width(self) -> int:
        return _CELL * len(self.columns)

    @property
    def height(self) -> int:
        return _CELL * len(self.rows)

    @property
    def horizontal_labels(self) -> bool:
        """Whether the column labels are short enough to be horizontal."""
        return max((text_width(label) for label in self.columns), default=0) < _CELL

    @property
    def below(self) -> int:
        """Height of the column labels."""
        if self.horizontal_labels:
            return 28
        longest = max(text_width(shorten(label, _MAX_LABEL_LENGTH)) for label in self.columns)
        return 20 + math.ceil(9 / 8 * longest)


def _fits(panel: Panel, rows: int, columns: int) -> bool:
    return len(panel.values) == rows and all(len(row) == columns for row in panel.values)


def _draw(panels: Sequence[Panel], grid: _Grid, title: str, per_line: int) -> str:
    title = shorten(title, 200)
    texts = [*((panel.title, 13) for panel in panels), *((panel.note, 12) for panel in panels)]
    # the title of a narrow matrix must not overlap the next title
    pitch = max(grid.width, *(round(text_width(text, size) * 0.9) for text, size in texts), 0) + _GAP
    lines = max(math.ceil(len(panels) / max(per_line, 1)), 1)
    line_height = _TITLE_SPACE + grid.height + grid.below
    width = grid.left + max(min(len(panels), per_line) * pitch, math.ceil(text_width(title, 16)) + 12)
    height = _TOP + lines * line_height + (lines - 1) * _GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" font-family="system-ui, sans-serif" font-size="13">',
        f"<title>{escape_text(title)}</title>",
        f'<rect class="paper" width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{grid.left}" y="24" font-size="16" font-weight="600">{escape_text(title)}</text>',
    ]
    for line in range(lines):
        top = _TOP + _TITLE_SPACE + line * (line_height + _GAP)
        parts += [
            f'<text x="{grid.left - 6}" y="{top + (row + 0.7) * _CELL:.1f}" text-anchor="end">'
            f"{escape_text(shorten(label, _MAX_LABEL_LENGTH))}</text>"
            for row, label in enumerate(grid.rows)
        ]
        for number, panel in enumerate(panels[line * per_line : (line + 1) * per_line]):
            parts += _draw_panel(panel, grid, grid.left + number * pitch, top)
    return "\n".join([*parts, "</svg>\n"])


def _draw_panel(panel: Panel, grid: _Grid, left: int, top: int) -> list[str]:
    sizes = (abs(value) for row in panel.values for value in row if math.isfinite(value))
    largest = max(sizes, default=0.0) or 1.0
    parts = [
        f'<text x="{left}" y="{top - 26}" font-weight="600">{escape_text(panel.title)}</text>',
        f'<text x="{left}" y="{top - 9}" fill="#5b6470" font-size="12">{escape_text(panel.note)}</text>',
    ]
    for i, row in enumerate(panel.values):
        for j, value in enumerate(row):
            tooltip = f"{grid.rows[i]} → {grid.columns[j]}: {value:.4f}"
            parts.append(
                f'<rect x="{left + j * _CELL}" y="{top + i * _CELL}" width="{_CELL}" height="{_CELL}" '
                f'fill="{_color(value / largest)}"><title>{escape_text(tooltip)}</title></rect>'
            )
    parts.append(
        f'<rect x="{left}" y="{top}" width="{grid.width}" height="{grid.height}" fill="none" stroke="#c5cad1" '
        'stroke-width="1"/>'
    )
    return parts + _draw_column_labels(grid, left, top + grid.height)


def _draw_column_labels(grid: _Grid, left: int, bottom: int) -> list[str]:
    if grid.horizontal_labels:
        return [
            f'<text x="{left + (j + 0.5) * _CELL:.1f}" y="{bottom + 18}" text-anchor="middle">'
            f"{escape_text(label)}</text>"
            for j, label in enumerate(grid.columns)
        ]
    return [
        f'<text transform="translate({left + (j + 0.3) * _CELL:.1f} {bottom + 8}) rotate(90)">'
        f"{escape_text(shorten(label, _MAX_LABEL_LENGTH))}</text>"
        for j, label in enumerate(grid.columns)
    ]


def _color(value: float) -> str:
    """Return a color: white at 0, orange at 1, blue at -1."""
    if not math.isfinite(value):
        return "#b4b9c0"
    full = (201, 82, 10) if value >= 0 else (24, 92, 172)
    strength = min(abs(value), 1.0)
    return "#" + "".join(f"{round(255 + (channel - 255) * strength):02x}" for channel in full)
