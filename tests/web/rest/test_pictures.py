"""Pictures in requests: found objects, and files that are refused."""

import base64
import io
import json
import struct
import zlib
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from qkv.inference import ObjectFinder
from qkv.tasks.detection.predictor import BoxPredictor
from qkv.web.rest import ApiServer, ServedRun
from qkv.web.rest.pictures import MAX_PICTURE_BYTES
from tests.inference.red_boxes import RedBoxes, red_picture
from tests.web.rest.http import error_of, post
from tests.web.rest.runs import running

BOX = (40, 20, 100, 80)


@pytest.fixture(scope="module")
def finder():
    """A server whose detector finds red boxes."""
    detector = RedBoxes()

    def predictor(model, options):
        return BoxPredictor(ObjectFinder(model, ("blue", "red"), 160), options)

    task = SimpleNamespace(kind="detect", predictor=predictor)
    served = ServedRun("red", "stub", task, detector, None, None, True)
    with running(ApiServer(served)) as server:
        yield server


def encoded(height, width, box, form="PNG"):
    file = io.BytesIO()
    Image.fromarray(red_picture(height, width, box)).save(file, form)
    return base64.b64encode(file.getvalue()).decode()


def png(width, height):
    """A small file that claims to be a large picture."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    data = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    return base64.b64encode(data).decode()


@pytest.mark.parametrize("form", ["PNG", "WEBP", "GIF"])
def test_objects_are_found(finder, form):
    pictures = [{"picture": encoded(120, 160, BOX, form)}, {"picture": encoded(120, 160, (0, 0, 0, 0), form)}]
    status, _, body = post(finder, "/v1/predict", {"input": pictures})
    first, second = json.loads(body)["data"]
    assert status == 200
    (found,) = first["objects"]
    assert (found["label"], found["box"]) == ("red", [40, 20, 100, 80])
    assert found["score"] == pytest.approx(0.9)
    assert (first["input"], second["input"], second["objects"]) == ("picture 1", "picture 2", [])


def test_a_data_url_and_a_least_score(finder):
    picture = {"picture": f"data:image/png;base64,{encoded(120, 160, BOX)}"}
    assert len(json.loads(post(finder, "/v1/predict", {"input": picture})[2])["data"][0]["objects"]) == 1
    found = json.loads(post(finder, "/v1/predict", {"input": picture, "min_score": 0.95})[2])
    assert found["data"][0]["objects"] == []


def test_a_damaged_picture_stops_no_other(finder):
    damaged = base64.b64encode(base64.b64decode(encoded(120, 160, BOX))[:-80]).decode()
    pictures = [{"picture": damaged}, {"picture": encoded(120, 160, BOX)}]
    first, second = json.loads(post(finder, "/v1/predict", {"input": pictures})[2])["data"]
    assert "picture-1.png is a damaged image" in first["error"]
    assert "/" not in first["error"].replace("qkv/", "")
    assert len(second["objects"]) == 1


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("/etc/passwd", "input must be an object, or a list of them, got '/etc/passwd'"),
        ({"file": "x"}, 'an input of this run must be {"picture": "BASE64 OF A FILE"}, got a dict'),
        ({"picture": 5}, 'an input of this run must be {"picture": "BASE64 OF A FILE"}, got a dict'),
        ({"picture": "not base64!"}, "a picture must be base64 without line ends"),
        ({"picture": base64.b64encode(b"%!PS-Adobe").decode()}, "a picture must be a PNG, JPEG, WebP or GIF file"),
        ({"picture": base64.b64encode(b"BM12").decode()}, "a picture must be a PNG, JPEG, WebP or GIF file"),
        ({"picture": png(5000, 5000)}, "picture-1.png has 5,000 x 5,000 pixels; at most 16,777,216 are read"),
        ({"picture": png(60_000, 60_000)}, "picture-1.png has too many pixels; at most 16,777,216 are read"),
    ],
)
def test_what_is_refused(finder, value, message):
    assert error_of(post(finder, "/v1/predict", {"input": value})) == (400, message)


def test_a_picture_that_is_too_large(finder):
    text = "A" * (MAX_PICTURE_BYTES * 4 // 3 + 8)
    status, message = error_of(post(finder, "/v1/predict", {"input": {"picture": text}}))
    assert (status, message) == (413, f"a picture may have at most {MAX_PICTURE_BYTES:,} bytes")


def test_no_file_is_left(finder, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for picture in (encoded(120, 160, BOX), png(5000, 5000)):
        post(finder, "/v1/predict", {"input": {"picture": picture}})
    assert list(Path(tmp_path).iterdir()) == []
