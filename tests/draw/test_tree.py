import xml.etree.ElementTree as ET

import pytest

from qkv.draw import Branch, tree

SVG = "{http://www.w3.org/2000/svg}"


def places(svg):
    texts = list(ET.fromstring(svg).iter(f"{SVG}text"))[1:]  # after the title
    return {text.text: (float(text.get("x")), float(text.get("y"))) for text in texts}


def test_levels_go_right_and_leaves_go_down():
    found = places(tree([Branch(None, "root"), Branch(0, "a"), Branch(0, "b"), Branch(1, "c"), Branch(1, "d")], "t"))
    assert found["root"][0] < found["a"][0] == found["b"][0] < found["c"][0] == found["d"][0]
    assert found["c"][1] < found["d"][1] < found["b"][1]
    assert found["a"][1] == pytest.approx((found["c"][1] + found["d"][1]) / 2)
    assert found["root"][1] == pytest.approx((found["a"][1] + found["b"][1]) / 2)


def test_a_stroke_for_every_branch_but_the_root():
    root = ET.fromstring(tree([Branch(None, "root"), Branch(0, "a"), Branch(1, "b", strong=False)], "t"))
    strokes = [path.get("stroke-width") for path in root.iter(f"{SVG}path")]
    assert strokes == ["2", "1"]


def test_labels_are_escaped():
    assert "<b>" not in tree([Branch(None, "<b>")], "<b>")


@pytest.mark.parametrize(
    ("branches", "message"),
    [
        ([], "at least a root"),
        ([Branch(0, "a")], r"branches\[0\] has parent 0"),
        ([Branch(None, "a"), Branch(None, "b")], "no other"),
        ([Branch(None, "a"), Branch(2, "b"), Branch(0, "c")], r"branches\[1\] has parent 2"),
    ],
)
def test_bad_input(branches, message):
    with pytest.raises(ValueError, match=message):
        tree(branches, "t")
