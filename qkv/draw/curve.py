"""Line charts, in one SVG file with no outside parts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from qkv.draw.series import Point, Series, is_there, thin
from qkv.draw.text import safe, shorten, text_width
from qkv.draw.ticks import label, linear_ticks, log_ticks

COLORS = ("#c9520a", "#2a72c4", "#2f8a5b", "#9159c9", "#cf3b6b", "#7d7428")
"""Readable on white and on near-black; when they are used up they come again, dashed."""
_DASHES = ("", "7 3", "2 3", "9 3 2 3")
_RIGHT = 24
_SAMPLE = 22  # length of the stroke in the legend
_FEW = 60  # up to here every point gets a dot
_SMALLEST = 1e-200  # what is nearer to 0 than this is 0 to an axis


@dataclass(frozen=True)
class Axis:
    """What is measured along one side of a chart."""

    title: str = ""
    log: bool = False
    """Equal ratios take equal room; numbers that are not positive are gaps."""

    def shows(self, value: float) -> bool:
        """Whether the value has a place on this axis."""
        return value > _SMALLEST if self.log else True


_PLAIN = Axis()


def curves(
    series: Sequence[Series],
    title: str,
    x: Axis = _PLAIN,
    y: Axis = _PLAIN,
    *,
    width: int = 860,
    height: int = 380,
) -> str:
    """An SVG of lines over one pair of axes; a gap in the points is a gap in the line.

    No more points are drawn than can be seen, and every extreme is among them. A faint series has the
    color of the series after it, its own calm form. A chart without any point says so.
    """
    if width < 300 or height < 200:
        raise ValueError(f"width must be at least 300 and height at least 200, got {width} x {height}")
    series = [replace(one, points=_drawable(one.points, x, y, width)) for one in series]
    legend, legend_height = _draw_legend(series, width)
    top = (56 if title else 24) + legend_height
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" font-family="system-ui, sans-serif" font-size="13" fill="#1b1f24">',
        f"<title>{safe(title)}</title>",
        f'<rect class="paper" width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="28" font-size="16" font-weight="600">{safe(shorten(title, width // 9))}</text>',
        f'<g transform="translate(16 {44 if title else 16})">',
        *legend,
        "</g>",
    ]
    there = [point for one in series for point in one.points if is_there(point)]
    if there:
        frame = _Frame.around(there, (x, y), (width, height), top)
        parts += [*_draw_axes(frame, x, y), *_draw_lines(series, frame)]
    else:
        middle = (top + height) // 2
        parts.append(f'<text x="{width // 2}" y="{middle}" text-anchor="middle" class="soft">no points yet</text>')
    return "\n".join([*parts, "</svg>\n"])


@dataclass(frozen=True)
class _Scale:
    """Numbers from low to high become pixels from start to end."""

    low: float
    high: float
    ticks: list[float]
    log: bool
    start: float = 0.0
    end: float = 1.0

    def __call__(self, value: float) -> float:
        low, high, value = (math.log(n) if self.log else n for n in (self.low, self.high, value))
        return self.start + (self.end - self.start) * (value - low) / (high - low)


@dataclass(frozen=True)
class _Frame:
    """Where the plot stands in the picture."""

    x: _Scale
    y: _Scale

    @classmethod
    def around(cls, points: Sequence[Point], axes: tuple[Axis, Axis], size: tuple[int, int], top: int) -> "_Frame":
        (x, y), (width, height) = axes, size
        across, up = _within([point[0] for point in points], x), _around([point[1] or 0.0 for point in points], y)
        left = (44 if y.title else 22) + max(text_width(label(tick), 12) for tick in up.ticks)
        bottom = height - (52 if x.title else 30)
        return cls(replace(across, start=left, end=width - _RIGHT), replace(up, start=bottom, end=top))


def _around(values: Sequence[float], axis: Axis) -> _Scale:
    """From tick to tick, with all values between."""
    low, high = min(values), max(values)
    if high - low <= max(1e-9 * max(abs(low), abs(high)), _SMALLEST):
        room = abs(low) / 2 if abs(low) > _SMALLEST else 1.0
        low, high = low - room, high + room
    ticks = log_ticks(low, high) if axis.log else linear_ticks(low, high)
    return _Scale(ticks[0], ticks[-1], ticks, axis.log)


def _within(values: Sequence[float], axis: Axis) -> _Scale:
    """From the first value (or 0, if it is near) to the last, with ticks where they fall."""
    whole, low, high = _around(values, axis), min(values), max(values)
    if not axis.log and 0 < low < high / 20:
        low = 0.0
    inside = [tick for tick in whole.ticks if low <= tick <= high]
    return _Scale(low, high, inside, axis.log) if len(inside) > 1 else whole


def _drawable(points: Sequence[Point], x: Axis, y: Axis, width: int) -> list[Point]:
    shown = [p if is_there(p) and x.shows(p[0]) and y.shows(p[1] or 0.0) else (p[0], None) for p in points]
    return thin(shown, width)


def _draw_axes(frame: _Frame, x: Axis, y: Axis) -> list[str]:
    left, right, bottom, top = frame.x.start, frame.x.end, frame.y.start, frame.y.end
    ups = [(label(tick), f"{frame.y(tick):.1f}") for tick in frame.y.ticks]
    acrosses = [(label(tick), f"{frame.x(tick):.1f}") for tick in frame.x.ticks]
    center, middle = (left + right) / 2, (top + bottom) / 2
    x_title, y_title = (safe(shorten(axis.title, int(room / 8))) for axis, room in ((x, right), (y, bottom)))
    return [
        '<g class="grid" stroke="#e3e6ea">',
        *(f'<line x1="{left:.1f}" x2="{right:.1f}" y1="{place}" y2="{place}"/>' for _, place in ups),
        *(f'<line x1="{place}" x2="{place}" y1="{bottom:.1f}" y2="{bottom + 5:.1f}"/>' for _, place in acrosses),
        "</g>",
        '<g class="soft" fill="#5b6470" font-size="12" text-anchor="end">',
        *(f'<text x="{left - 8:.1f}" y="{place}" dy="0.35em">{text}</text>' for text, place in ups),
        "</g>",
        '<g class="soft" fill="#5b6470" font-size="12" text-anchor="middle">',
        *(f'<text x="{place}" y="{bottom + 20:.1f}">{text}</text>' for text, place in acrosses),
        f'<text x="{center:.1f}" y="{bottom + 42:.1f}">{x_title}</text>',
        f'<text transform="translate(24 {middle:.1f}) rotate(-90)">{y_title}</text>',
        "</g>",
    ]


def _draw_lines(series: Sequence[Series], frame: _Frame) -> list[str]:
    parts = []
    for one, (color, stroke) in zip(series, _looks(series), strict=True):
        pieces = [
            [f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in piece if y is not None] for piece in _pieces(one.points)
        ]
        few = one.dots or (sum(map(len, pieces)) <= _FEW and not one.faint)
        if not one.dots:
            parts.append(f'<g class="series" fill="none" stroke-linejoin="round" {stroke}>')
            parts += [f'<polyline points="{" ".join(piece)}"/>' for piece in pieces if len(piece) > 1]
            parts.append("</g>")
        # a point between two gaps would have no line to be seen by
        dots = [dot.split(",") for piece in pieces for dot in piece if few or len(piece) == 1]
        radius = 6 if one.dots else 2.6
        parts += [f'<circle cx="{x}" cy="{y}" r="{radius}" fill="{color}"/>' for x, y in dots]
    return parts


def _pieces(points: Sequence[Point]) -> list[list[Point]]:
    """The runs between gaps."""
    runs: list[list[Point]] = [[]]
    for point in points:
        if is_there(point):
            runs[-1].append(point)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _looks(series: Sequence[Series]) -> list[tuple[str, str]]:
    """The color of each series and the attributes of its stroke."""
    looks, number = [], 0
    for one in series:
        color = COLORS[number % len(COLORS)]
        dash = _DASHES[number // len(COLORS) % len(_DASHES)]
        weight = 'stroke-width="1" stroke-opacity="0.5"' if one.faint else 'stroke-width="2"'
        looks.append((color, f'stroke="{color}" {weight}' + (f' stroke-dasharray="{dash}"' if dash else "")))
        number += not one.faint
    return looks


def _draw_legend(series: Sequence[Series], width: int) -> tuple[list[str], int]:
    """The names, as many on a line as fit, and the height they take."""
    parts: list[str] = []
    x, y = 0.0, 0
    for one, (_, stroke) in zip(series, _looks(series), strict=True):
        name = shorten(one.name, 40)
        needed = _SAMPLE + 8 + text_width(name, 12) + 16
        if x and x + needed > width - 32:
            x, y = 0.0, y + 20
        parts.append(_draw_sample(one, x, y + 6, stroke))
        parts.append(f'<text x="{x + _SAMPLE + 8:.1f}" y="{y + 10}" font-size="12">{safe(name)}</text>')
        x += needed
    return parts, y + 24 if series else 0


def _draw_sample(one: Series, x: float, y: int, stroke: str) -> str:
    """What the series looks like, beside its name."""
    if one.dots:
        return f'<circle cx="{x + _SAMPLE / 2:.1f}" cy="{y}" r="2.6" {stroke}/>'
    return f'<line x1="{x:.1f}" x2="{x + _SAMPLE:.1f}" y1="{y}" y2="{y}" {stroke}/>'
