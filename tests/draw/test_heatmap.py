import xml.etree.ElementTree as ET

import pytest

from qkv.draw import Panel, heatmaps, rectangular_heatmaps

SVG = "{http://www.w3.org/2000/svg}"


def test_every_cell_is_drawn_with_its_value():
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


def test_svg_is_self_contained():
    svg = heatmaps([Panel("one", [[1.0]])], ["a"], "t")
    assert "href" not in svg
    assert svg.count("http") == 1  # the namespace


def test_a_panel_that_does_not_fit():
    with pytest.raises(ValueError, match="panel 'one' must be 2 x 2"):
        heatmaps([Panel("one", [[1.0, 2.0]])], ["a", "b"], "t")


def test_a_nan_cell_is_gray_and_changes_no_other():
    root = ET.fromstring(heatmaps([Panel("one", [[float("nan"), 2.0], [float("-inf"), 0.0]])], ["a", "b"], "t"))
    cells = [r.get("fill") for r in root.iter(f"{SVG}rect") if r.find(f"{SVG}title") is not None]
    assert cells == ["#b4b9c0", "#c9520a", "#b4b9c0", "#ffffff"]


def cells_of(root):
    return [r for r in root.iter(f"{SVG}rect") if r.find(f"{SVG}title") is not None]


def test_rectangles_have_rows_and_columns_of_their_own():
    svg = rectangular_heatmaps([Panel("one", [[0.25, 0.5, 0.25], [1, 0, 0]])], ["AH", "END"], ["a", "b", "c"], "t")
    root = ET.fromstring(svg)
    assert [cell.find(f"{SVG}title").text for cell in cells_of(root)] == [
        "AH → a: 0.2500",
        "AH → b: 0.5000",
        "AH → c: 0.2500",
        "END → a: 1.0000",
        "END → b: 0.0000",
        "END → c: 0.0000",
    ]
    assert len({cell.get("x") for cell in cells_of(root)}) == 3
    assert len({cell.get("y") for cell in cells_of(root)}) == 2
    labels = [text.text for text in root.iter(f"{SVG}text")]
    assert labels == ["t", "AH", "END", "one", None, "a", "b", "c"]


def test_panels_wrap_and_stay_inside():
    panels = [Panel(f"a title that is wider than its panel {n}", [[1.0]]) for n in range(5)]
    root = ET.fromstring(rectangular_heatmaps(panels, ["r"], ["a long label"], "t", per_line=2))
    places = [(float(cell.get("x")), float(cell.get("y"))) for cell in cells_of(root)]
    assert len({x for x, _ in places}) == 2
    assert len({y for _, y in places}) == 3
    first, second = sorted({x for x, _ in places})
    assert second - first > 7 * len(panels[0].title)
    assert float(root.get("width")) > second + 22
    assert float(root.get("height")) > max(y for _, y in places) + 22 + 8 * len("a long label")


def test_long_labels_are_truncated_but_complete_in_tooltips():
    root = ET.fromstring(rectangular_heatmaps([Panel("one", [[1.0]])], ["r" * 100], ["c" * 100], "t"))
    assert cells_of(root)[0].find(f"{SVG}title").text == f"{'r' * 100} → {'c' * 100}: 1.0000"
    assert max(len(text.text or "") for text in root.iter(f"{SVG}text")) == 24


def test_rectangles_that_do_not_fit():
    with pytest.raises(ValueError, match="panel 'one' must be 1 x 3, .* got 1 x 2"):
        rectangular_heatmaps([Panel("one", [[1.0, 2.0]])], ["a"], ["b", "c", "d"], "t")
    with pytest.raises(ValueError, match="panel 'one' must be 2 x 1, .* got 0 x 0"):
        rectangular_heatmaps([Panel("one", [])], ["a", "b"], ["c"], "t")
    with pytest.raises(ValueError, match="per_line must be at least 1, got 0"):
        rectangular_heatmaps([], [], [], "t", per_line=0)
