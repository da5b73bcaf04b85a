"""Small images as PNG files, to embed in pages."""

import struct
import zlib
from base64 import b64encode

_COLOR_TYPES = {1: 0, 3: 2}
"""Channels -> color type of PNG: grayscale or RGB."""


def encode_png(pixels: bytes, width: int, height: int, channels: int) -> bytes:
    """Return a PNG file of 8-bit pixels, row by row, with one channel (grayscale) or three (RGB)."""
    if channels not in _COLOR_TYPES:
        raise ValueError(f"channels must be 1 or 3, got {channels}")
    size = width * channels
    if len(pixels) != size * height or not pixels:
        raise ValueError(f"{width} x {height} x {channels} pixels need {size * height} bytes, got {len(pixels)}")
    rows = b"".join(b"\0" + pixels[start : start + size] for start in range(0, len(pixels), size))
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOR_TYPES[channels], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in chunks)


def data_uri(png: bytes) -> str:
    """Return a PNG file as an address that holds it."""
    return f"data:image/png;base64,{b64encode(png).decode()}"


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
