import xml.etree.ElementTree as ET

import pytest

from qkv.problems import draw_pictures, problems
from qkv.problems.pictures import PICTURES
from tests.problems.calls import run

QUICK = [name for name in PICTURES if not problems[name].slow]
SVG = "{http://www.w3.org/2000/svg}"


def test_the_marked_ones_have_pictures():
    assert list(PICTURES) == ["A1", "A3", "A8", "B5", "B7", "B8", "C5", "D3", "D4", "E2", "E6", "F1"]


@pytest.mark.parametrize("name", QUICK)
def test_pictures_are_drawn(name):
    drawn = draw_pictures(name, run(name))
    assert drawn
    for svg in drawn.values():
        root = ET.fromstring(svg)
        assert len(list(root)) > 5
        assert "no points yet" not in svg


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PICTURES if problems[name].slow])
def test_pictures_of_what_was_trained(name):
    drawn = draw_pictures(name, run(name))
    assert drawn
    assert "no points yet" not in "".join(drawn.values())


def test_the_network_separates_xor_in_its_picture():
    """Two branches of the boundary, both between the 0s and the 1s."""
    root = ET.fromstring(draw_pictures("A1", run("A1"))["A1.svg"])
    assert len(list(root.iter(f"{SVG}polyline"))) >= 4


def test_a_problem_without_pictures():
    assert draw_pictures("A9", run("A9")) == {}
