"""Points in order, made calm or short without hiding what happened."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

Point = tuple[float, float | None]
"""x and y; a y of None or NaN is a gap."""


@dataclass(frozen=True)
class Series:
    """One line of a chart."""

    name: str
    points: Sequence[Point]
    faint: bool = False
    """Drawn thin and pale: the noise behind a line that matters."""
    dots: bool = False
    """Points without a line between them."""


def is_there(point: Point) -> bool:
    """Whether there is anything to draw; beyond 1e200 the arithmetic of an axis overflows."""
    return all(value is not None and math.isfinite(value) and abs(value) < 1e200 for value in point)


def smooth(points: Sequence[Point], window: int) -> list[Point]:
    """A mean of each point with those around it, the far ones counting less and less.

        s_t = sum_i keep^|t - i| y_i / sum_i keep^|t - i|,    keep = 1 - 1 / window

    It looks both ways, because a mean of the past alone runs behind a loss that falls. Gaps stay gaps
    and count for nothing.
    """
    if window < 1:
        raise ValueError(f"window must be at least 1, got {window}")
    heights = [y if is_there((x, y)) else None for x, y in points]
    before = _fade(heights, 1 - 1 / window)
    after = _fade(heights[::-1], 1 - 1 / window)[::-1]
    return [
        # both sums have the point itself in them
        (x, None if y is None else (past[0] + future[0] - y) / (past[1] + future[1] - 1))
        for (x, _), y, past, future in zip(points, heights, before, after, strict=True)
    ]


def _fade(heights: Sequence[float | None], keep: float) -> list[tuple[float, float]]:
    """At each place, the sum of the heights so far and that of their weights, both fading."""
    total = weight = 0.0
    sums = []
    for y in heights:
        total, weight = keep * total + (y or 0.0), keep * weight + (y is not None)
        sums.append((total, weight))
    return sums


def thin(points: Sequence[Point], most: int) -> list[Point]:
    """At most so many points, with every extreme still there: the lowest and highest of each stretch.

    A gap survives if it fills a whole stretch; smaller ones are smaller than what can be seen.
    """
    if most < 4:
        raise ValueError(f"most must be at least 4, got {most}")
    if len(points) <= most:
        return list(points)
    inner = points[1:-1]  # the ends stay whatever they are, so that the line is as long as it was
    stretches = most // 2 - 1
    kept = [points[0]]
    for number in range(stretches):
        stretch = inner[number * len(inner) // stretches : (number + 1) * len(inner) // stretches]
        heights = {place: point[1] for place, point in enumerate(stretch) if is_there(point)}
        lowest = min(heights, key=lambda place: heights[place] or 0.0, default=0)
        highest = max(heights, key=lambda place: heights[place] or 0.0, default=0)
        kept += [stretch[place] for place in sorted({lowest, highest})]
    return [*kept, points[-1]]
