"""Line charts as self-contained SVG."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from qkv.draw.series import Point, Series, downsample, is_drawable
from qkv.draw.text import escape_text, shorten, text_width
from qkv.draw.ticks import format_tick, linear_ticks, log_ticks

COLORS = ("#c9520a", "#2a72c4", "#2f8a5b", "#9159c9", "#cf3b6b", "#7d7428")
"""Line colors, readable on white and on near-black; further series repeat them with dashes."""
_DASHES = ("", "7 3", "2 3", "9 3 2 3")
_RIGHT_MARGIN = 24
_LEGEND_STROKE = 22
_MAX_DOTS = 60  # longer series have no dot per point
_SMALLEST = 1e-200  # smaller absolute values are 0 to an axis


@dataclass(frozen=True)
class Axis:
    """Title and scale of an axis."""

    title: str = ""
    log: bool = False
    """Whether the scale is logarithmic; values that are not positive become gaps."""

    def can_show(self, value: float) -> bool:
        """Return whether the value can be drawn on this axis."""
        return value > _SMALLEST if self.log else True


_LINEAR = Axis()


def line_chart(
    series: Sequence[Series],
    title: str,
    x: Axis = _LINEAR,
    y: Axis = _LINEAR,
    *,
    width: int = 860,
    height: int = 380,
) -> str:
    """Return an SVG of lines over one pair of axes; a gap in the points is a gap in the line.

    Long series are downsampled to visible resolution, keeping every extreme. A faint series has the color of the next
    series, its smoothed form. A chart without points shows "no points yet".
    """
    if width < 300 or height < 200:
        raise ValueError(f"width must be at least 300 and height at least 200, got {width} x {height}")
    series = [replace(one, points=_drawable(one.points, x, y, width)) for one in series]
    legend, legend_height = _draw_legend(series, width)
    top = (56 if title else 24) + legend_height
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" font-family="system-ui, sans-serif" font-size="13" fill="#1b1f24">',
        f"<title>{escape_text(title)}</title>",
        f'<rect class="paper" width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="28" font-size="16" font-weight="600">{escape_text(shorten(title, width // 9))}</text>',
        f'<g transform="translate(16 {44 if title else 16})">',
        *legend,
        "</g>",
    ]
    drawable = [point for one in series for point in one.points if is_drawable(point)]
    if drawable:
        frame = _Frame.around(drawable, (x, y), (width, height), top)
        parts += [*_draw_axes(frame, x, y), *_draw_lines(series, frame)]
    else:
        middle = (top + height) // 2
        parts.append(f'<text x="{width // 2}" y="{middle}" text-anchor="middle" class="soft">no points yet</text>')
    return "\n".join([*parts, "</svg>\n"])


@dataclass(frozen=True)
class _Scale:
    """Map from values [low, high] to pixels [start, end]."""

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
    """Scales of both axes: the plot area in the image."""

    x: _Scale
    y: _Scale

    @classmethod
    def around(cls, points: Sequence[Point], axes: tuple[Axis, Axis], size: tuple[int, int], top: int) -> "_Frame":
        """Return the frame that shows all points in an image of this size, below `top`."""
        (x, y), (width, height) = axes, size
        across = _scale_within([point[0] for point in points], x)
        up = _scale_around([point[1] or 0.0 for point in points], y)
        left = (44 if y.title else 22) + max(text_width(format_tick(tick), 12) for tick in up.ticks)
        bottom = height - (52 if x.title else 30)
        return cls(replace(across, start=left, end=width - _RIGHT_MARGIN), replace(up, start=bottom, end=top))


def _scale_around(values: Sequence[float], axis: Axis) -> _Scale:
    """Return a scale that begins and ends at a tick and contains all values."""
    low, high = min(values), max(values)
    if high - low <= max(1e-9 * max(abs(low), abs(high)), _SMALLEST):
        margin = abs(low) / 2 if abs(low) > _SMALLEST else 1.0
        low, high = low - margin, high + margin
    ticks = log_ticks(low, high) if axis.log else linear_ticks(low, high)
    return _Scale(ticks[0], ticks[-1], ticks, axis.log)


def _scale_within(values: Sequence[float], axis: Axis) -> _Scale:
    """Return a scale from the smallest value (or 0, if near) to the largest, with the ticks in between."""
    enclosing, low, high = _scale_around(values, axis), min(values), max(values)
    if not axis.log and 0 < low < high / 20:
        low = 0.0
    inside = [tick for tick in enclosing.ticks if low <= tick <= high]
    return _Scale(low, high, inside, axis.log) if len(inside) > 1 else enclosing


def _drawable(points: Sequence[Point], x: Axis, y: Axis, width: int) -> list[Point]:
    shown = [p if is_drawable(p) and x.can_show(p[0]) and y.can_show(p[1] or 0.0) else (p[0], None) for p in points]
    return downsample(shown, width)


def _draw_axes(frame: _Frame, x: Axis, y: Axis) -> list[str]:
    left, right, bottom, top = frame.x.start, frame.x.end, frame.y.start, frame.y.end
    y_ticks = [(format_tick(tick), f"{frame.y(tick):.1f}") for tick in frame.y.ticks]
    x_ticks = [(format_tick(tick), f"{frame.x(tick):.1f}") for tick in frame.x.ticks]
    center, middle = (left + right) / 2, (top + bottom) / 2
    x_title, y_title = (escape_text(shorten(axis.title, int(room / 8))) for axis, room in ((x, right), (y, bottom)))
    return [
        '<g class="grid" stroke="#e3e6ea">',
        *(f'<line x1="{left:.1f}" x2="{right:.1f}" y1="{y_pixel}" y2="{y_pixel}"/>' for _, y_pixel in y_ticks),
        *(f'<line x1="{x_pixel}" x2="{x_pixel}" y1="{bottom:.1f}" y2="{bottom + 5:.1f}"/>' for _, x_pixel in x_ticks),
        "</g>",
        '<g class="soft" fill="#5b6470" font-size="12" text-anchor="end">',
        *(f'<text x="{left - 8:.1f}" y="{y_pixel}" dy="0.35em">{text}</text>' for text, y_pixel in y_ticks),
        "</g>",
        '<g class="soft" fill="#5b6470" font-size="12" text-anchor="middle">',
        *(f'<text x="{x_pixel}" y="{bottom + 20:.1f}">{text}</text>' for text, x_pixel in x_ticks),
        f'<text x="{center:.1f}" y="{bottom + 42:.1f}">{x_title}</text>',
        f'<text transform="translate(24 {middle:.1f}) rotate(-90)">{y_title}</text>',
        "</g>",
    ]


def _draw_lines(series: Sequence[Series], frame: _Frame) -> list[str]:
    parts = []
    for one, (color, stroke) in zip(series, _line_styles(series), strict=True):
        pieces = [
            [f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in piece if y is not None]
            for piece in _split_at_gaps(one.points)
        ]
        draw_all_dots = one.dots or (sum(map(len, pieces)) <= _MAX_DOTS and not one.faint)
        if not one.dots:
            parts.append(f'<g class="series" fill="none" stroke-linejoin="round" {stroke}>')
            parts += [f'<polyline points="{" ".join(piece)}"/>' for piece in pieces if len(piece) > 1]
            parts.append("</g>")
        # a point between two gaps has no line, so it always gets a dot
        dots = [dot.split(",") for piece in pieces for dot in piece if draw_all_dots or len(piece) == 1]
        radius = 6 if one.dots else 2.6
        parts += [f'<circle cx="{x}" cy="{y}" r="{radius}" fill="{color}"/>' for x, y in dots]
    return parts


def _split_at_gaps(points: Sequence[Point]) -> list[list[Point]]:
    """Split the points at gaps."""
    runs: list[list[Point]] = [[]]
    for point in points:
        if is_drawable(point):
            runs[-1].append(point)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _line_styles(series: Sequence[Series]) -> list[tuple[str, str]]:
    """Return the color and the stroke attributes of each series."""
    styles, number = [], 0
    for one in series:
        color = COLORS[number % len(COLORS)]
        dash = _DASHES[number // len(COLORS) % len(_DASHES)]
        weight = 'stroke-width="1" stroke-opacity="0.5"' if one.faint else 'stroke-width="2"'
        styles.append((color, f'stroke="{color}" {weight}' + (f' stroke-dasharray="{dash}"' if dash else "")))
        number += not one.faint
    return styles


def _draw_legend(series: Sequence[Series], width: int) -> tuple[list[str], int]:
    """Return the legend, wrapped to the width, and its height."""
    parts: list[str] = []
    x, y = 0.0, 0
    for one, (_, stroke) in zip(series, _line_styles(series), strict=True):
        name = shorten(one.name, 40)
        needed = _LEGEND_STROKE + 8 + text_width(name, 12) + 16
        if x and x + needed > width - 32:
            x, y = 0.0, y + 20
        parts.append(_draw_legend_mark(one, x, y + 6, stroke))
        parts.append(f'<text x="{x + _LEGEND_STROKE + 8:.1f}" y="{y + 10}" font-size="12">{escape_text(name)}</text>')
        x += needed
    return parts, y + 24 if series else 0


def _draw_legend_mark(one: Series, x: float, y: int, stroke: str) -> str:
    """Return the line or dot next to a name in the legend."""
    if one.dots:
        return f'<circle cx="{x + _LEGEND_STROKE / 2:.1f}" cy="{y}" r="2.6" {stroke}/>'
    return f'<line x1="{x:.1f}" x2="{x + _LEGEND_STROKE:.1f}" y1="{y}" y2="{y}" {stroke}/>'
