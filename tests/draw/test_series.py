import math

import pytest

from qkv.draw import downsample, smooth


def test_smooth_by_the_formula():
    heights = {0: 3.0, 1: 7.0, 3: 1.0, 5: 4.0}
    points = [(0, 3.0), (1, 7.0), (2, None), (3, 1.0), (4, math.nan), (5, 4.0)]
    expected = {2: None, 4: None}
    for t in heights:
        weights = {i: 0.75 ** abs(t - i) for i in heights}
        mean = sum(weights[i] * heights[i] for i in heights) / sum(weights.values())
        expected[t] = pytest.approx(mean, rel=1e-12)
    assert smooth(points, window=4) == sorted(expected.items())


def test_smooth_leaves_a_straight_line_where_it_is():
    """A mean of the past alone would run behind by `window`."""
    line = [(x, -2.0 * x) for x in range(400)]
    assert smooth(line, 5)[200][1] == pytest.approx(-400, abs=1e-9)
    assert smooth(line, 1) == line


def test_downsample_keeps_extremes():
    points = [(float(x), math.sin(x)) for x in range(100_000)]
    points[54_321] = (54_321.0, 9.0)
    points[77_777] = (77_777.0, -9.0)
    thinned = downsample(points, 500)
    assert len(thinned) <= 500
    assert {points[0], points[54_321], points[77_777], points[-1]} <= set(thinned)
    assert thinned == sorted(thinned)


def test_downsample_keeps_short_series():
    points = [(1.0, None), (2.0, 5.0)]
    assert downsample(points, 4) == points


def test_downsample_keeps_long_gaps():
    points = [(float(x), None if 3000 <= x < 5000 else 1.0) for x in range(10_000)]
    inside = [y for x, y in downsample(points, 200) if 3200 <= x < 4800]
    assert len(inside) > 10
    assert set(inside) == {None}
    assert downsample([(float(x), None) for x in range(1000)], 10)[0] == (0.0, None)


def test_bad_input():
    with pytest.raises(ValueError, match="window must be at least 1, got 0"):
        smooth([], 0)
    with pytest.raises(ValueError, match="max_points must be at least 4, got 3"):
        downsample([], 3)
