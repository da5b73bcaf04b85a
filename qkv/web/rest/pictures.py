"""Pictures in requests: base64 of a PNG, JPEG, WebP or GIF file, within limits of size and pixels."""

import base64
import binascii
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from qkv.data.files.image_files import image_shape
from qkv.errors import QkvError
from qkv.web.rest.errors import ApiError
from qkv.web.rest.fields import shorten

MAX_PICTURE_BYTES = 6 * 2**20
"""Largest file of a picture."""
MAX_PIXELS = 2**24
"""Most pixels of a picture, so that a small file cannot fill the memory."""
BEGINNINGS = {
    ".png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    ".jpg": re.compile(rb"\xff\xd8\xff"),
    ".webp": re.compile(rb"RIFF....WEBP", re.S),
    ".gif": re.compile(rb"GIF8[79]a"),
}
"""Suffix -> how such a file begins; pillow reads many more formats, which are not offered to strangers."""
_DATA_URL = re.compile(r"data:image/[a-z+.-]{1,20};base64,")


@dataclass(frozen=True)
class Picture:
    """A file as it came."""

    data: bytes
    suffix: str


def decode_picture(value: object) -> Picture:
    """Return the picture of `{"picture": "base64 or data URL"}`; raise for anything else, or one that is too large."""
    text = value.get("picture") if isinstance(value, dict) and set(value) == {"picture"} else None
    if not isinstance(text, str):
        raise ApiError(
            f'an input of this run must be {{"picture": "BASE64 OF A FILE"}}, got {shorten(value)}', param="input"
        )
    text = _DATA_URL.sub("", text, count=1) if text.startswith("data:") else text
    if len(text) > MAX_PICTURE_BYTES * 4 // 3 + 4:
        raise ApiError(f"a picture may have at most {MAX_PICTURE_BYTES:,} bytes", status=413, param="input")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ApiError("a picture must be base64 without line ends", param="input") from None
    suffix = next((suffix for suffix, begins in BEGINNINGS.items() if begins.match(data)), None)
    if suffix is None:
        raise ApiError("a picture must be a PNG, JPEG, WebP or GIF file", param="input")
    return Picture(data, suffix)


@contextmanager
def as_files(pictures: Sequence[Picture]) -> Iterator[list[str]]:
    """Write pictures into files of a new folder, which is removed afterwards; yield their paths."""
    with TemporaryDirectory(prefix="qkv-") as folder:
        paths = [Path(folder) / f"picture-{number}{one.suffix}" for number, one in enumerate(pictures, 1)]
        for path, picture in zip(paths, pictures, strict=True):
            path.write_bytes(picture.data)
        yield [str(path) for path in paths]


def picture_problem(path: str) -> str | None:
    """Return why a file cannot be decoded within the limits; None: it can."""
    try:
        image_shape(Path(path), MAX_PIXELS)
    except QkvError as error:
        return error.what
    return None
