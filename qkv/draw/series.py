"""Smoothing and downsampling of series of points."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

Point = tuple[float, float | None]
"""(x, y); a y of None or NaN is a gap."""


@dataclass(frozen=True)
class Series:
    """A line of a chart."""

    name: str
    points: Sequence[Point]
    faint: bool = False
    """Whether it is drawn thin and pale, as the noise behind a smoothed line."""
    dots: bool = False
    """Whether points are drawn without a line between them."""


def is_drawable(point: Point) -> bool:
    """Return whether a point can be drawn; beyond 1e200 the arithmetic of an axis overflows."""
    return all(value is not None and math.isfinite(value) and abs(value) < 1e200 for value in point)


def smooth(points: Sequence[Point], window: int) -> list[Point]:
    """Smooth with a two-sided exponential moving average.

        s_t = sum_i keep^|t - i| y_i / sum_i keep^|t - i|,    keep = 1 - 1 / window

    It is two-sided because a mean of the past lags behind a falling loss. Gaps stay gaps and have no weight.
    """
    if window < 1:
        raise ValueError(f"window must be at least 1, got {window}")
    heights = [y if is_drawable((x, y)) else None for x, y in points]
    before = _decayed_sums(heights, 1 - 1 / window)
    after = _decayed_sums(heights[::-1], 1 - 1 / window)[::-1]
    return [
        # both sums include the point itself
        (x, None if y is None else (past[0] + future[0] - y) / (past[1] + future[1] - 1))
        for (x, _), y, past, future in zip(points, heights, before, after, strict=True)
    ]


def _decayed_sums(heights: Sequence[float | None], keep: float) -> list[tuple[float, float]]:
    """Return at each index the decayed sum of the heights so far, and of their weights."""
    total = weight = 0.0
    sums = []
    for y in heights:
        total, weight = keep * total + (y or 0.0), keep * weight + (y is not None)
        sums.append((total, weight))
    return sums


def downsample(points: Sequence[Point], max_points: int) -> list[Point]:
    """Return at most `max_points` points that keep every extreme: the minimum and maximum of each interval.

    A gap is kept if it fills a whole interval; smaller ones would not be visible.
    """
    if max_points < 4:
        raise ValueError(f"max_points must be at least 4, got {max_points}")
    if len(points) <= max_points:
        return list(points)
    inner = points[1:-1]  # the end points are always kept
    intervals = max_points // 2 - 1
    kept = [points[0]]
    for number in range(intervals):
        interval = inner[number * len(inner) // intervals : (number + 1) * len(inner) // intervals]
        heights = {index: point[1] for index, point in enumerate(interval) if is_drawable(point)}
        lowest = min(heights, key=lambda index: heights[index] or 0.0, default=0)
        highest = max(heights, key=lambda index: heights[index] or 0.0, default=0)
        kept += [interval[index] for index in sorted({lowest, highest})]
    return [*kept, points[-1]]
