import math
import re
import xml.etree.ElementTree as ET

import pytest

from qkv.draw import Bar, bar_chart

SVG = "{http://www.w3.org/2000/svg}"


def rectangles(root):
    found = [element for element in root.iter(f"{SVG}rect") if element.get("class") == "bar"]
    return [(float(element.get("x")), float(element.get("width"))) for element in found]


def tick(root, text):
    """Return the position of the tick of this value."""
    return next(float(e.get("x")) for e in root.iter(f"{SVG}text") if e.text == text and e.get("x") != "100%")


def test_bars_match_the_ticks():
    root = ET.fromstring(bar_chart([Bar("a", 0.2), Bar("b", 0.4)], "t", "errors"))
    zero = tick(root, "0")
    assert rectangles(root) == [
        (zero, pytest.approx(tick(root, "0.2") - zero, abs=0.11)),
        (zero, pytest.approx(tick(root, "0.4") - zero, abs=0.11)),
    ]
    assert "errors" in [element.text for element in root.iter(f"{SVG}text")]


def test_negative_bars_end_at_zero():
    root = ET.fromstring(bar_chart([Bar("a", -2.0), Bar("b", 2.0)], "t"))
    (start, width), (other, _) = rectangles(root)
    assert start == pytest.approx(tick(root, "-2"), abs=0.11)
    assert start + width == pytest.approx(other, abs=0.11) == pytest.approx(tick(root, "0"), abs=0.11)


def test_names_are_next_to_their_bars():
    root = ET.fromstring(bar_chart([Bar("softmax <b>", 1.0), Bar("w" * 99, 3.0)], "t"))
    heights = [float(e.get("y")) + 9 for e in root.iter(f"{SVG}rect") if e.get("class") == "bar"]
    names = {e.text: float(e.get("y")) for e in root.iter(f"{SVG}text") if e.get("dy") and e.get("x") != "100%"}
    assert names == {"softmax <b>": heights[0], "w" * 47 + "…": heights[1]}


def test_a_spread_is_a_line_from_low_to_high():
    svg = bar_chart([Bar("a", 2.0, (1.0, 4.0)), Bar("b", 2.0, (2.0, 2.0)), Bar("c", 2.0)], "t")
    root = ET.fromstring(svg)
    (path,) = [element.get("d") for element in root.iter(f"{SVG}path")]
    places = [float(place) for place in re.findall(r"M([\d.]+)", path)]
    assert [min(places), max(places)] == pytest.approx([tick(root, "1"), tick(root, "4")], abs=0.11)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_nan_value_has_only_a_name(value):
    root = ET.fromstring(bar_chart([Bar("lost", value), Bar("found", 1.0)], "t"))
    assert len(rectangles(root)) == 1
    assert "lost" in [element.text for element in root.iter(f"{SVG}text")]


@pytest.mark.parametrize("rows", [[], [Bar("nothing", 0.0)]])
def test_an_empty_chart(rows):
    assert len(rectangles(ET.fromstring(bar_chart(rows, "t")))) == len(rows)


def test_bad_width():
    with pytest.raises(ValueError, match="width must be at least 400, got 30"):
        bar_chart([], "t", width=30)
