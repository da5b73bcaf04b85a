import math
import xml.etree.ElementTree as ET
from itertools import combinations, pairwise

import pytest

from qkv.draw import Axis, Series, line_chart
from qkv.draw.line_chart import COLORS

SVG = "{http://www.w3.org/2000/svg}"


def texts(root):
    return [element.text for element in root.iter(f"{SVG}text") if element.text]


def lines(root):
    """The points of each polyline."""
    return [
        [tuple(map(float, pair.split(","))) for pair in line.get("points").split()]
        for line in root.iter(f"{SVG}polyline")
    ]


def dots(root):
    return [(float(dot.get("cx")), float(dot.get("cy"))) for dot in root.iter(f"{SVG}circle")]


def place_of(root, text, number=0):
    element = [element for element in root.iter(f"{SVG}text") if element.text == text][number]
    return float(element.get("x")), float(element.get("y"))


def test_points_match_the_ticks():
    root = ET.fromstring(line_chart([Series("a", [(0, 0), (50, 2), (100, 4)])], "t", Axis("step"), Axis("loss")))
    (line,) = lines(root)
    assert line == dots(root)
    # 50 is halfway from 40 to 60, and its height is at the tick of 2
    assert line[1][0] == pytest.approx((place_of(root, "40")[0] + place_of(root, "60")[0]) / 2, abs=0.1)
    assert [y for _, y in line] == [place_of(root, text)[1] for text in ("0", "2", "4")]
    assert [line[0][0], line[2][0]] == [place_of(root, "0", 1)[0], place_of(root, "100")[0]]


def test_a_log_axis_gives_equal_ratios_equal_room():
    root = ET.fromstring(line_chart([Series("a", [(1, 0.01), (2, 0.1), (3, 1.0), (4, 10.0)])], "t", y=Axis(log=True)))
    heights = [y for _, y in lines(root)[0]]
    assert [a - b for a, b in pairwise(heights)] == pytest.approx([heights[0] - heights[1]] * 3, abs=0.11)
    assert {"0.01", "0.1", "1", "10"} <= set(texts(root))


def test_gaps_are_gaps():
    points = [(1, 1.0), (2, 2.0), (3, None), (4, 3.0), (5, math.nan), (6, 1.0), (7, math.inf), (8, 1.0), (9, 2.0)]
    root = ET.fromstring(line_chart([Series("a", points)], "t"))
    assert [len(line) for line in lines(root)] == [2, 2]
    assert len(dots(root)) == 6


def test_a_point_between_gaps_is_seen_among_many():
    points = [(x, None if x in (49, 51) else 1.0 + x) for x in range(100)]
    root = ET.fromstring(line_chart([Series("a", points)], "t"))
    assert [len(line) for line in lines(root)] == [49, 48]
    assert len(dots(root)) == 1


def test_on_a_log_axis_what_is_not_positive_is_a_gap():
    root = ET.fromstring(line_chart([Series("a", [(1, 1.0), (2, 0.0), (3, -1.0), (4, 2.0)])], "t", y=Axis(log=True)))
    assert lines(root) == []
    assert len(dots(root)) == 2


@pytest.mark.parametrize("series", [[], [Series("a", [])], [Series("a", [(1, None), (2, math.nan)])]])
def test_a_chart_without_points_is_marked(series):
    root = ET.fromstring(line_chart(series, "t"))
    assert "no points yet" in texts(root)
    assert lines(root) == dots(root) == []


@pytest.mark.parametrize("height", [0.0, 5.0, -3.0, 1e-310, 1e199, 1e16])
@pytest.mark.parametrize("log", [False, True])
def test_one_point_and_flat_lines(height, log):
    for points in ([(7, height)], [(7, height), (8, height)], [(7, height), (8, math.nextafter(height, 1e308))]):
        root = ET.fromstring(line_chart([Series("a", points)], "t", y=Axis(log=log)))
        assert len(dots(root)) == (0 if log and height < 1e-300 else len(points))
        assert all(0 < x < 860 and 0 < y < 380 for x, y in dots(root))


def test_the_legend_names_every_series_and_wraps():
    names = [f"a series with quite a long name, number {number}" for number in range(9)]
    root = ET.fromstring(line_chart([Series(name, [(0, 1), (1, 2)]) for name in names], "t"))
    assert [name[:39] for name in names] == [text[:39] for text in texts(root) if text.startswith("a series")]
    rows = {element.get("y") for element in root.iter(f"{SVG}text") if (element.text or "").startswith("a series")}
    assert len(rows) >= 4
    strokes = [(g.get("stroke"), g.get("stroke-dasharray")) for g in root.iter(f"{SVG}g") if g.get("class") == "series"]
    assert len(set(strokes)) == 9


def test_a_faint_series_has_the_color_of_the_next():
    points = [(0, 1), (1, 2)]
    root = ET.fromstring(line_chart([Series("a", points, faint=True), Series("b", points), Series("c", points)], "t"))
    groups = [group for group in root.iter(f"{SVG}g") if group.get("class") == "series"]
    assert [group.get("stroke") for group in groups] == [COLORS[0], COLORS[0], COLORS[1]]
    assert [group.get("stroke-opacity") is None for group in groups] == [False, True, True]


def luminance(color):
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("color", COLORS)
@pytest.mark.parametrize("paper", ["#ffffff", "#191919"])
def test_lines_stand_out_on_light_and_dark(color, paper):
    """WCAG 2 requires a contrast of 3 to 1 for graphical objects."""
    darker, lighter = sorted((luminance(color), luminance(paper)))
    assert (lighter + 0.05) / (darker + 0.05) >= 3


def in_lab(color):
    """CIE 1976, a perceptually uniform color space."""
    red, green, blue = (
        luminance(color[0] + "0" * 2 * n + color[1 + 2 * n : 3 + 2 * n] + "0" * (4 - 2 * n)) for n in range(3)
    )
    red, green, blue = red / 0.2126, green / 0.7152, blue / 0.0722
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.0888
    x, y, z = (n ** (1 / 3) if n > 0.008856 else 7.787 * n + 16 / 116 for n in (x, y, z))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("pair", [*combinations(COLORS, 2)], ids=" ".join)
def test_line_colors_are_distinct(pair):
    assert math.dist(*map(in_lab, pair)) > 35


def test_hostile_texts_are_escaped_and_svg_is_self_contained():
    evil = "<script>alert('x')</script> \u202e\x00 \"&"
    svg = line_chart([Series(evil, [(0, 1)])], evil, Axis(evil), Axis(evil))
    root = ET.fromstring(svg)
    shown = evil.replace("\u202e", "<U+202E>").replace("\x00", "<U+0000>")
    assert texts(root).count(shown) == 4
    assert root.find(f"{SVG}title").text == shown
    assert "<script" not in svg
    assert "href" not in svg
    assert svg.count("http") == 1  # the namespace


def test_long_runs_are_small():
    svg = line_chart([Series("a", [(x, math.sin(x)) for x in range(100_000)])], "t")
    assert len(svg) < 40_000


def test_bad_input():
    with pytest.raises(ValueError, match="width must be at least 300 and height at least 200, got 100 x 380"):
        line_chart([], "t", width=100)


def test_dots_have_no_line():
    root = ET.fromstring(
        line_chart([Series("a", [(0, 0), (1, 2), (3, 1)], dots=True), Series("b", [(0, 1), (3, 2)])], "t")
    )
    assert [len(line) for line in lines(root)] == [2]
    radii = [float(dot.get("r")) for dot in root.iter(f"{SVG}circle")]
    assert radii == [2.6, 6, 6, 6, 2.6, 2.6]  # the legend's, the dots, the ends of the line
