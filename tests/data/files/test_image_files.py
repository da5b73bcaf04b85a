"""Images of a folder, against pixels that are known; damaged and hostile files are one sentence."""

import struct
import sys
import zlib
from io import BytesIO

import pytest
import torch
from PIL import Image

from qkv.data import read_image_folder
from qkv.data.files.image_files import fit_image, image_shape, read_image
from qkv.errors import QkvError

RED, GRAY = (255, 0, 0), 100


def save(path, size, color=GRAY, mode="L"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, color).save(path)
    return path


@pytest.fixture
def folder(tmp_path):
    """Two classes of 5 x 7 pixels, and what is no image."""
    save(tmp_path / "dark" / "1.png", (5, 7), 10)
    save(tmp_path / "dark" / "deep" / "2.PNG", (5, 7), 11)
    save(tmp_path / "light" / "1.bmp", (5, 7), 200)
    save(tmp_path / ".hidden" / "1.png", (5, 7), 200)
    (tmp_path / "light" / "notes.txt").write_text("no image")
    (tmp_path / "empty").mkdir()
    return tmp_path


def test_classes_are_subfolders(folder):
    found = read_image_folder(folder)
    assert found.classes == ("dark", "light")
    assert found.examples.labels.tolist() == [0, 0, 1]
    assert found.examples.inputs.shape == (3, 1, 7, 5)
    assert found.examples.inputs[:, 0, 0, 0].tolist() == [10, 11, 200]
    assert found.resized == 0


def test_sizes(folder):
    assert read_image_folder(folder, size=9).examples.inputs.shape == (3, 1, 9, 9)
    save(folder / "light" / "2.png", (6, 7))
    found = read_image_folder(folder)
    assert found.examples.inputs.shape == (4, 1, 32, 32)
    assert found.resized == 4
    assert read_image_folder(folder, shape=(3, 7, 5)).resized == 1


def test_one_color_image_makes_all_of_them_color(folder):
    save(folder / "light" / "2.png", (5, 7), RED, "RGB")
    found = read_image_folder(folder).examples.inputs
    assert found.shape == (4, 3, 7, 5)
    assert found[:, :, 3, 2].tolist() == [[10] * 3, [11] * 3, [200] * 3, [255, 0, 0]]


def test_pixels_by_hand(tmp_path):
    path = tmp_path / "image.png"
    image = Image.new("L", (2, 1))
    image.putdata([0, 200])
    image.save(path)
    assert image_shape(path) == (1, 1, 2)
    assert read_image(path, (1, 1, 2)).tolist() == [[[0, 200]]]
    assert read_image(path, (1, 1, 1)).tolist() == [[[100]]]  # the mean
    assert read_image(path, (3, 1, 2)).tolist() == [[[0, 200]]] * 3
    Image.new("RGBA", (1, 1), (0, 0, 0, 0)).save(path)
    assert read_image(path, (1, 1, 1)).tolist() == [[[255]]]  # transparent, on white
    Image.new("I;16", (1, 1), 256 * 77).save(path)
    assert read_image(path, (1, 1, 1)).tolist() == [[[77]]]
    assert fit_image(torch.full((3, 2, 2), 50, dtype=torch.uint8), (1, 1, 1)).tolist() == [[[50]]]


def png(width, height):
    """A PNG file that claims this size and has one row of pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = b""
    for name, data in ((b"IHDR", header), (b"IDAT", zlib.compress(b"\0" * 9)), (b"IEND", b"")):
        chunks += struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    return b"\x89PNG\r\n\x1a\n" + chunks


def noise():
    """A PNG file of random pixels, 4 kB."""
    pixels = bytes(torch.randint(256, (64 * 64,), generator=torch.Generator().manual_seed(0)).tolist())
    file = BytesIO()
    Image.frombytes("L", (64, 64), pixels).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"x\.png is not an image that pillow can read, in "),
        (b"GIF89a" + bytes(20), r"x\.png is (not an image|a damaged image)"),
        (png(8, 1)[:40], r"x\.png is (not an image|a damaged image)"),
        (noise()[:3000], r"x\.png is a damaged image"),
        (png(8193, 8193), r"x\.png has 8,193 x 8,193 pixels; at most 67,108,864 are read"),
        (png(2**20, 2**20), r"x\.png has too many pixels; at most 67,108,864 are read"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, data, message):
    path = tmp_path / "x.png"
    path.write_bytes(data)
    with pytest.raises(QkvError, match=message):
        read_image(path, (1, 4, 4))


def test_bad_input_folders(tmp_path, folder):
    with pytest.raises(QkvError, match="must have at least two subfolders with images, one per class, got 0"):
        read_image_folder(folder / "light")
    with pytest.raises(QkvError, match="there is no folder nowhere"):
        read_image_folder(tmp_path / "nowhere")


def test_without_pillow_the_error_names_the_extra(tmp_path, monkeypatch):
    path = save(tmp_path / "x.png", (2, 2))
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(QkvError, match=r'images need pillow, which is not installed: pip install "qkv\[vision\]"'):
        read_image(path, (1, 2, 2))
