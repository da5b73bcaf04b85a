import xml.etree.ElementTree as ET

import pytest

from qkv.draw import Panel, heatmaps

SVG = "{http://www.w3.org/2000/svg}"


def test_every_cell_is_drawn_with_its_number():
    svg = heatmaps(
        [Panel("one", [[1.0, 0.0], [-0.5, 0.5]]), Panel("two", [[0, 0], [0, 0]])], ["a", "<b>"], "title & all"
    )
    root = ET.fromstring(svg)
    cells = [r for r in root.iter(f"{SVG}rect") if r.find(f"{SVG}title") is not None]
    assert [cell.find(f"{SVG}title").text for cell in cells[:4]] == [
        "a → a: 1.0000",
        "a → <b>: 0.0000",
        "<b> → a: -0.5000",
        "<b> → <b>: 0.5000",
    ]
    assert [cell.get("fill") for cell in cells[:2]] == ["#c9520a", "#ffffff"]
    assert cells[2].get("fill") != cells[3].get("fill")
    assert len(cells) == 8


def test_nothing_from_outside():
    svg = heatmaps([Panel("one", [[1.0]])], ["a"], "t")
    assert "href" not in svg
    assert svg.count("http") == 1  # the namespace


def test_a_panel_that_does_not_fit():
    with pytest.raises(ValueError, match="panel 'one' must be 2 x 2"):
        heatmaps([Panel("one", [[1.0, 2.0]])], ["a", "b"], "t")
