"""Readers of boxes: the three formats give the same boxes, and bad input gives one sentence with its place."""

import json
from pathlib import Path

import numpy as np
import pytest

from qkv.data.boxes import LabeledBox, read_boxes
from qkv.errors import QkvError

Image = pytest.importorskip("PIL.Image")

KING, QUEEN = LabeledBox("king", 10, 20, 40, 60), LabeledBox("queen", 0, 0, 100, 80)


def picture(path, size=(100, 80), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size).save(path)
    return path


def xml(boxes, size=(100, 80), name="a.jpg"):
    objects = "".join(
        f"\n<object><name>{b.label}</name><difficult>{int(b.difficult)}</difficult><bndbox><xmin>{b.x1 + 1:g}</xmin>"
        f"<ymin>{b.y1 + 1:g}</ymin><xmax>{b.x2:g}</xmax><ymax>{b.y2:g}</ymax></bndbox></object>"
        for b in boxes
    )
    return (
        f"<annotation><filename>{name}</filename><size><width>{size[0]}</width><height>{size[1]}</height></size>"
        f"{objects}</annotation>"
    )


def voc(folder, boxes, **options):
    picture(folder / "a.jpg")
    (folder / "a.xml").write_text(xml(boxes, **options))
    return folder


def coco(folder, boxes, **image):
    picture(folder / "pictures" / "a.jpg")
    names = sorted({box.label for box in boxes})
    record = {
        "images": [{"id": 5, "file_name": "a.jpg", "width": 100, "height": 80, **image}],
        "categories": [{"id": 7 + i, "name": name} for i, name in enumerate(names)],
        "annotations": [
            {"image_id": 5, "category_id": 7 + names.index(b.label), "bbox": [b.x1, b.y1, b.x2 - b.x1, b.y2 - b.y1]}
            for b in boxes
        ],
    }
    (folder / "instances.json").write_text(json.dumps(record))
    return folder


def yolo(folder, lines, names="names: [king, queen]\n"):
    picture(folder / "images" / "a.jpg")
    (folder / "labels").mkdir()
    (folder / "labels" / "a.txt").write_text(lines)
    if names:
        (folder / "data.yaml").write_text(names)
    return folder


YOLO_LINES = "0 0.25 0.5 0.3 0.5\n1 0.5 0.5 1 1\n"
FORMATS = {
    "voc": lambda folder: voc(folder, [KING, QUEEN]),
    "coco": lambda folder: coco(folder, [KING, QUEEN]),
    "yolo": lambda folder: yolo(folder, YOLO_LINES),
}


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_gives_the_same_boxes(kind, tmp_path):
    found = read_boxes(FORMATS[kind](tmp_path), strict=True)
    assert found.classes == ("king", "queen")
    assert found.problems == ()
    (image,) = found.images
    assert (image.width, image.height, image.path.name) == (100, 80, "a.jpg")
    for box, expected in zip(image.objects, (KING, QUEEN), strict=True):
        assert box.label == expected.label
        corners = [(b.x1, b.y1, b.x2, b.y2) for b in (box, expected)]
        assert corners[0] == pytest.approx(corners[1], abs=1e-9)


@pytest.mark.parametrize(
    "names",
    [
        "names:\n  - king\n  - queen\n",
        "nc: 2\nnames:\n  0: king\n  1: 'queen' # two\n",
        'names: ["king", "queen"]\nval: x',
    ],
)
def test_names_in_yaml(names, tmp_path):
    assert read_boxes(yolo(tmp_path, YOLO_LINES, names)).classes == ("king", "queen")


def test_pictures_without_objects_are_kept(tmp_path):
    yolo(tmp_path, YOLO_LINES)
    picture(tmp_path / "images" / "b.png", mode="RGBA")
    assert [len(image.objects) for image in read_boxes(tmp_path, strict=True).images] == [2, 0]


def test_difficult_and_turned_pictures(tmp_path):
    voc(tmp_path, [LabeledBox("king", 10, 20, 40, 95, difficult=True)], size=(80, 100))
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn: 100 x 80 is shown as 80 x 100
    Image.new("RGB", (100, 80)).save(tmp_path / "a.jpg", exif=exif)
    (image,) = read_boxes(tmp_path, strict=True).images
    assert (image.width, image.height) == (80, 100)
    assert image.objects[0].difficult


def cut_off(folder):
    """Add a picture whose header is whole and whose pixels end early."""
    pixels = np.random.default_rng(0).integers(0, 256, (80, 100, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "b.jpg")
    (folder / "b.jpg").write_bytes((folder / "b.jpg").read_bytes()[:-3000])
    (folder / "b.xml").write_text(xml([KING], name="b.jpg"))
    return folder


BAD = {
    "no area": (
        lambda f: voc(f, [KING, LabeledBox("king", 30, 20, 30, 60)]),
        r"a\.xml:3: the box of 'king' \(30, 20, 30, 60\) has no area",
    ),
    "outside": (
        lambda f: voc(f, [KING, LabeledBox("king", 30, 20, 140, 60)]),
        r"does not lie within the picture of 100 x 80 pixels",
    ),
    "NaN": (lambda f: voc(f, [KING, LabeledBox("king", float("nan"), 20, 40, 60)]), "is not finite"),
    "size": (lambda f: voc(f, [KING], size=(90, 80)), r"a\.xml: its size is not that of a\.jpg, 100 x 80"),
    "missing": (
        lambda f: (voc(f, [KING]), (f / "b.xml").write_text(xml([KING], name="b.jpg")))[0],
        r"b\.xml: its picture 'b' is missing",
    ),
    "not xml": (lambda f: (voc(f, [KING]), (f / "b.xml").write_text("<a"))[0], r"b\.xml: it is not XML \("),
    "entities": (
        lambda f: (voc(f, [KING]), (f / "b.xml").write_text("<!DOCTYPE a [<!ENTITY x 'y'>]><annotation/>"))[0],
        "document type is not allowed",
    ),
    "not a picture": (
        lambda f: (voc(f, [KING]), (f / "b.jpg").write_text("no"), (f / "b.xml").write_text(xml([KING], name="b.jpg")))[
            0
        ],
        r"b\.jpg is not an image that pillow can read",
    ),
    "cut off": (lambda f: cut_off(voc(f, [KING])), r"b\.jpg is a damaged image \("),
    "corner": (
        lambda f: (
            voc(f, [KING]),
            (f / "a.xml").write_text(xml([KING, QUEEN]).replace("<ymax>80</ymax>", "<ymax>x</ymax>")),
        )[0],
        r"a\.xml:3: the box of 'queen' does not have xmin, ymin, xmax and ymax as numbers",
    ),
    "unknown class": (
        lambda f: yolo(f, "0 .5 .5 .5 .5\n7 .5 .5 .5 .5\n"),
        r"a\.txt:2: has class 7, but there are 2 names",
    ),
    "yolo line": (
        lambda f: yolo(f, "0 .5 .5 .5 .5\n1 .5\n"),
        r"a\.txt:2: must have a class number and four numbers, got '1 \.5'",
    ),
    "coco size": (lambda f: coco(f, [KING], width=90), r"the size of 'a\.jpg' is not 100 x 80"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_listed_or_raises(name, tmp_path):
    make, message = BAD[name]
    folder = make(tmp_path)
    found = read_boxes(folder)
    assert sum(len(image.objects) for image in found.images) == 1
    assert len(found.problems) == 1
    with pytest.raises(QkvError, match=message):
        read_boxes(folder, strict=True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda f: f, "has no pictures"),
        (lambda f: picture(f / "a.jpg").parent, "YOLO labels need class names in one of data.yaml"),
        (lambda f: yolo(f, ""), "no picture of .* has a box"),
        (lambda f: f / "nothing", "there is no file or folder nothing"),
        (lambda f: (f / "x.json").write_text("[]") and f, "must hold a JSON object, but holds a list"),
        (lambda f: (f / "x.json").write_text("{}") and f, "must have a list of objects 'images'"),
        (lambda f: (coco(f, [KING]), (f / "b.json").write_text("{}"))[0], "has 2 JSON files; name the one to read"),
    ],
)
def test_bad_input_folders(make, message, tmp_path):
    with pytest.raises(QkvError, match=message):
        read_boxes(make(tmp_path))


def test_cards_like_folder_with_pictures_and_xml_side_by_side(tmp_path):
    for name in ("b", "c"):
        picture(tmp_path / f"{name}.JPG")
        Path(tmp_path / f"{name}.xml").write_text(xml([KING], name=f"{name}.JPG"))
    assert [image.path.name for image in read_boxes(tmp_path, strict=True).images] == ["b.JPG", "c.JPG"]
