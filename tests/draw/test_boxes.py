"""Drawings of boxes: positions, labels inside of the picture, escaped names, pixels of the picture."""

import base64
import re
import xml.etree.ElementTree as ET
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from qkv.draw import DrawnBox, DrawnFile, draw_boxes, drawings_page
from qkv.draw.boxes import class_color

SVG = "{http://www.w3.org/2000/svg}"


def picture(height, width):
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def numbers(element):
    return [float(element.get(name)) for name in ("x", "y", "width", "height")]


def labels(root):
    return [(numbers(g[0]), g[1].text) for g in root.iter(f"{SVG}g") if g.get("class") == "label"]


def frames(root, name):
    return [numbers(rect) for rect in root.iter(f"{SVG}rect") if rect.get("class") == name]


def embedded(root):
    (image,) = root.iter(f"{SVG}image")
    data = base64.b64decode(image.get("href").removeprefix("data:image/png;base64,"))
    return np.asarray(Image.open(BytesIO(data)))


def test_boxes_and_pixels_of_a_picture_that_keeps_its_size():
    pixels = picture(300, 600)
    boxes = [DrawnBox("cat", (10, 50, 110, 250), 0.987), DrawnBox("dog", (300, 60, 500, 200), is_true=True, color=1)]
    root = ET.fromstring(draw_boxes(pixels, boxes, "a photo"))
    assert root.get("viewBox") == "0 0 600 300"
    assert root[0].text == "a photo"
    assert np.array_equal(embedded(root), pixels)
    assert frames(root, "found") == [[10, 50, 100, 200]]
    assert frames(root, "true") == [[300, 60, 200, 140]]
    dashed = [rect.get("stroke-dasharray") is not None for rect in root.iter(f"{SVG}rect") if rect.get("class")]
    assert dashed == [False, True]
    assert [text for _, text in labels(root)] == ["cat 0.99", "dog"]
    assert [rect[:2] for rect, _ in labels(root)] == [[10, 32], [300, 42]]  # above their boxes


@pytest.mark.parametrize(
    ("size", "drawn"), [((96, 96), (480, 480)), ((30, 60), (240, 480)), ((1500, 2000), (768, 1024))]
)
def test_small_and_large_pictures_are_scaled(size, drawn):
    height, width = size
    root = ET.fromstring(draw_boxes(picture(height, width), [DrawnBox("a", (width / 2, height / 2, width, height))]))
    assert (float(root.get("height")), float(root.get("width"))) == drawn
    assert frames(root, "found") == [[drawn[1] / 2, drawn[0] / 2, drawn[1] / 2, drawn[0] / 2]]
    assert max(embedded(root).shape) <= 1024


def test_a_large_picture_is_averaged_in_blocks():
    pixels = picture(5, 2050)  # blocks of 3 x 3; the last ones are smaller
    small = embedded(ET.fromstring(draw_boxes(pixels, [])))
    assert small.shape == (2, 684, 3)
    assert np.array_equal(small[0, 0], np.rint(pixels[:3, :3].mean((0, 1))))
    assert np.array_equal(small[1, 683], np.rint(pixels[3:, 2049:].mean((0, 1))))


@pytest.mark.parametrize("corner", [(0, 0), (590, 0), (0, 290), (590, 290), (300, 150)])
@pytest.mark.parametrize("name", ["cat", "a very long name of a class " * 4, "猫" * 40])
def test_labels_stay_inside_of_the_picture(corner, name):
    x, y = corner
    root = ET.fromstring(draw_boxes(picture(300, 600), [DrawnBox(name, (x, y, x + 10, y + 10), 0.5)]))
    (((left, top, width, height), text),) = labels(root)
    assert 0 <= left <= left + width <= 600.05
    assert 0 <= top <= top + height <= 300
    assert text.startswith(name[:3])


def test_labels_of_boxes_at_one_place_do_not_cover_each_other():
    boxes = [DrawnBox(name, (50, 60, 250, 200), 0.5) for name in ("cat", "dog", "cow", "owl")]
    tops = sorted(rect[1] for rect, _ in labels(ET.fromstring(draw_boxes(picture(300, 600), boxes))))
    assert tops == [42, 60, 182, 200]


def test_boxes_outside_are_clipped_and_flat_pictures_have_no_label():
    root = ET.fromstring(draw_boxes(picture(300, 600), [DrawnBox("a", (-50, -50, 900, 900))]))
    assert frames(root, "found") == [[0, 0, 600, 300]]
    flat = ET.fromstring(draw_boxes(picture(1, 900), [DrawnBox("a", (0, 0, 900, 1))]))
    assert labels(flat) == []
    assert len(frames(flat, "found")) == 1


def test_names_are_escaped():
    name = '<script>"&\x00\u202e'
    text = draw_boxes(picture(300, 600), [DrawnBox(name, (1, 1, 9, 9), 0.5)], name)
    assert "<script" not in text
    shown = '<script>"&<U+0000><U+202E>'
    root = ET.fromstring(text)
    assert root[0].text == shown
    assert labels(root)[0][1] == f"{shown} 0.50"
    page = drawings_page(name, [DrawnFile(name, Path('a b"<.svg'), [name])], name)
    assert "<script" not in page
    assert 'src="a%20b%22%3C.svg"' in page


def test_white_text_is_readable_on_every_color_and_neighbors_differ():
    colors = [class_color(number) for number in range(80)]
    for color in colors:
        rgb = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb]
        assert 1.05 / (0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05) >= 4.5
    assert len(set(colors)) == 80


def test_the_page_shows_every_file_and_requests_nothing():
    files = [DrawnFile("a.jpg", Path("a.boxes.svg"), ["cat 0.90", "dog 0.80"]), DrawnFile("b.jpg", Path("b.svg"), [])]
    page = drawings_page("photos", files, "2 pictures")
    assert re.findall(r'src="([^"]*)"', page) == ["a.boxes.svg", "b.svg"]
    assert "default-src 'none'" in page
    assert "nothing found" in page
    assert "<bdi>cat 0.90</bdi><br><bdi>dog 0.80</bdi>" in page


@pytest.mark.parametrize("bad", [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3)), np.zeros((0, 4, 3), np.uint8)])
def test_bad_input_pictures(bad):
    with pytest.raises(ValueError, match=r"picture must be uint8 \(height, width, 3\), got"):
        draw_boxes(bad, [])


def test_bad_input_boxes():
    with pytest.raises(ValueError, match="the box of 'cat' must be finite"):
        draw_boxes(picture(4, 4), [DrawnBox("cat", (0, 0, float("nan"), 1))])
