"""Objects of one picture: boxes in pixels of the original, whatever its size, format and orientation."""

import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

import qkv
from qkv.errors import QkvError
from qkv.inference import FoundObject, ObjectFinder
from tests.inference.red_boxes import RED, RedBoxes, red_picture

BOX = (40, 20, 100, 80)
CLASSES = ("blue", "red")


@pytest.fixture
def finder():
    return ObjectFinder(RedBoxes(), CLASSES, size=64)


def box_of(found):
    (one,) = found
    assert one.label == "red"
    return one.box


@pytest.mark.parametrize(
    ("size", "height", "width", "padded", "corner"),
    [
        (0, 120, 160, (128, 160), 127),
        (64, 120, 160, (64, 64), 127),
        (64, 160, 120, (64, 64), 127),
        (96, 48, 131, (64, 96), 127),
        (64, 500, 500, (64, 64), 90),
    ],
)
def test_boxes_are_in_pixels_of_the_original(size, height, width, padded, corner):
    box = (width // 4, height // 8, width // 2, height // 2)
    detector = RedBoxes()
    found = ObjectFinder(detector, CLASSES, size).find(red_picture(height, width, box))
    pixel = max(height, width) / size if size else 0
    assert box_of(found) == pytest.approx(box, abs=1.01 * pixel)
    assert detector.seen == [((1, 3, *padded), [corner] * 3, 0)]


def test_array_tensor_and_file_give_the_same(finder, tmp_path):
    array = red_picture(120, 160, BOX)
    Image.fromarray(array).save(tmp_path / "a.png")
    found = finder.find(array)
    assert found == [FoundObject("red", pytest.approx(0.9), box_of(found))]
    assert finder.find(torch.from_numpy(array).movedim(2, 0)) == found
    assert finder.find(tmp_path / "a.png") == finder.find(str(tmp_path / "a.png")) == found


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "CMYK"])
def test_modes_of_color_files(mode, finder, tmp_path):
    path = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
    Image.fromarray(red_picture(120, 160, BOX)).convert(mode).save(path)
    assert box_of(finder.find(path)) == pytest.approx(BOX, abs=2.6)


@pytest.mark.parametrize("mode", ["L", "LA", "1", "I;16"])
def test_gray_files_have_nothing_red(mode, finder, tmp_path):
    values = np.full((40, 60), 30000 if mode == "I;16" else 200, dtype=np.uint16 if mode == "I;16" else np.uint8)
    image = Image.fromarray(values) if mode == "I;16" else Image.fromarray(values).convert(mode)
    image.save(tmp_path / "a.png")
    assert finder.find(tmp_path / "a.png") == []


def test_a_turned_photo_has_boxes_of_the_upright_picture(finder, tmp_path):
    upright = Image.fromarray(red_picture(120, 160, BOX))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "a.jpg", exif=exif, quality=95)
    assert box_of(finder.find(tmp_path / "a.jpg")) == pytest.approx(BOX, abs=3)


def test_transparent_pixels_are_white(finder, tmp_path):
    image = Image.new("RGBA", (60, 40), (*RED, 0))
    image.save(tmp_path / "a.png")
    assert finder.find(tmp_path / "a.png") == []


def test_a_detector_that_needs_proposals_gets_those_of_selective_search():
    detector = RedBoxes(needs_proposals=True)
    found = ObjectFinder(detector, CLASSES, 64).find(red_picture(60, 80, (20, 10, 50, 40)), min_score=0.2)
    ((_, _, count),) = detector.seen
    assert count > 0
    near = [one for one in found if one.label == "blue" and one.box == pytest.approx((20, 10, 50, 40), abs=4)]
    assert near != []


@pytest.mark.parametrize("shape", [(1, 1), (1, 300), (300, 1), (2, 2)])
def test_tiny_pictures(shape):
    picture = red_picture(*shape, (0, 0, 1, 1))
    ((label, box),) = [(one.label, one.box) for one in ObjectFinder(RedBoxes(), CLASSES, 0).find(picture)]
    assert (label, box) == ("red", (0, 0, 1, 1))
    ObjectFinder(RedBoxes(needs_proposals=True), CLASSES, 64).find(picture)


def test_only_objects_with_the_least_score(finder):
    picture = red_picture(60, 80, (20, 10, 50, 40))
    assert [one.label for one in finder.find(picture, min_score=0.89)] == ["red"]
    assert finder.find(picture, min_score=0.91) == []


def png_header(width, height):
    """A PNG that claims a size and has no pixels."""

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (png_header(20_000, 20_000), "photo.png has too many pixels; at most 67,108,864 are read, in "),
        (png_header(10_000, 10_000), "photo.png has too many pixels; at most 67,108,864 are read, in "),
        (png_header(9_000, 9_000), "photo.png has 9,000 x 9,000 pixels; at most 67,108,864 are read, in "),
        (png_header(60, 40), "photo.png is a damaged image "),
        (b"no picture", "photo.png is not an image that pillow can read, in "),
        (b"", "photo.png is not an image that pillow can read, in "),
        (None, "there is no file photo.png, in "),
    ],
)
def test_bad_input_files_are_one_sentence(data, message, finder, tmp_path):
    path = tmp_path / "photo.png"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(QkvError) as error:
        finder.find(path)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("picture", "error", "message"),
    [
        (np.zeros((4, 4), dtype=np.uint8), ValueError, r"uint8 array \(height, width, 3\), got uint8 \(4, 4\)"),
        (np.zeros((4, 4, 3)), ValueError, r"got float64 \(4, 4, 3\)"),
        (np.zeros((0, 4, 3), dtype=np.uint8), ValueError, r"got uint8 \(0, 4, 3\)"),
        (torch.zeros(4, 4, 3, dtype=torch.uint8), ValueError, r"uint8 tensor \(3, height, width\), got torch.uint8"),
        (torch.zeros(3, 4, 4), ValueError, "got torch.float32"),
        (None, TypeError, "a path, an array or a tensor, got NoneType"),
    ],
)
def test_bad_input_pictures(picture, error, message, finder):
    with pytest.raises(error, match=message):
        finder.find(picture)


def test_bad_input_score(finder):
    with pytest.raises(ValueError, match="min_score must be from 0 to 1, got 2"):
        finder.find(red_picture(9, 9, (0, 0, 3, 3)), min_score=2)


def test_qkv_detect_takes_a_finder(finder):
    picture = red_picture(120, 160, BOX)
    assert qkv.detect(finder, picture) == finder.find(picture)
    assert qkv.detect(finder, picture, min_score=0.95) == []


def test_qkv_detect_refuses_a_run_without_boxes(tmp_path):
    with pytest.raises(QkvError, match="no such run folder"):
        qkv.detect(tmp_path / "none", red_picture(9, 9, (0, 0, 3, 3)))
