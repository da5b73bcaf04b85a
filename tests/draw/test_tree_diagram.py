import xml.etree.ElementTree as ET

import pytest

from qkv.draw import TreeNode, tree_diagram

SVG = "{http://www.w3.org/2000/svg}"


def places(svg):
    texts = list(ET.fromstring(svg).iter(f"{SVG}text"))[1:]  # after the title
    return {text.text: (float(text.get("x")), float(text.get("y"))) for text in texts}


def test_levels_go_right_and_leaves_go_down():
    found = places(
        tree_diagram(
            [TreeNode(None, "root"), TreeNode(0, "a"), TreeNode(0, "b"), TreeNode(1, "c"), TreeNode(1, "d")], "t"
        )
    )
    assert found["root"][0] < found["a"][0] == found["b"][0] < found["c"][0] == found["d"][0]
    assert found["c"][1] < found["d"][1] < found["b"][1]
    assert found["a"][1] == pytest.approx((found["c"][1] + found["d"][1]) / 2)
    assert found["root"][1] == pytest.approx((found["a"][1] + found["b"][1]) / 2)


def test_an_edge_for_every_node_but_the_root():
    root = ET.fromstring(tree_diagram([TreeNode(None, "root"), TreeNode(0, "a"), TreeNode(1, "b", strong=False)], "t"))
    strokes = [path.get("stroke-width") for path in root.iter(f"{SVG}path")]
    assert strokes == ["2", "1"]


def test_labels_are_escaped():
    assert "<b>" not in tree_diagram([TreeNode(None, "<b>")], "<b>")


@pytest.mark.parametrize(
    ("branches", "message"),
    [
        ([], "at least a root"),
        ([TreeNode(0, "a")], r"nodes\[0\] must come after its parent, got parent 0"),
        ([TreeNode(None, "a"), TreeNode(None, "b")], "no other"),
        (
            [TreeNode(None, "a"), TreeNode(2, "b"), TreeNode(0, "c")],
            r"nodes\[1\] must come after its parent, got parent 2",
        ),
    ],
)
def test_bad_input(branches, message):
    with pytest.raises(ValueError, match=message):
        tree_diagram(branches, "t")
