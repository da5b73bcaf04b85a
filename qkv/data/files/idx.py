"""IDX files, the format of MNIST: a magic number, the sizes of the axes, then the values.

00 00 08 03   00 00 ea 60   00 00 00 1c   00 00 00 1c   ...        (08: uint8; 03: three axes; 60,000 x 28 x 28)
"""

import gzip
import os
import struct
import zlib
from io import BufferedReader, BytesIO
from math import prod
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Tensor

from qkv.data.files.limits import require_size
from qkv.errors import QkvError
from qkv.storage import open_file

BLOCK_BYTES = 2**20
"""Bytes per read of a packed file."""
Readable = BufferedReader | gzip.GzipFile | BytesIO

UINT8_TYPE = 8
"""Type code of unsigned bytes, the only one that image and label files use."""


def read_idx(path: Path | str, axes: int) -> UInt8[Tensor, "*axes"]:
    """Read a file, plain or gzipped, with this many axes: 3 for images, 1 for labels."""
    path = Path(path)
    with open_file(path) as file:
        is_packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        size = None if is_packed else os.fstat(file.fileno()).st_size
        try:
            with gzip.GzipFile(fileobj=file) if is_packed else file as data:
                return _read_array(data, axes, path, size)
        except (OSError, EOFError, zlib.error) as error:
            raise QkvError(f"{path.name} is damaged or truncated: {error}", path.parent) from None


def parse_idx(data: bytes, axes: int, where: Path) -> UInt8[Tensor, "*axes"]:
    """Parse the contents of a file; `where` appears in errors."""
    return _read_array(BytesIO(data), axes, where, len(data))


def _read_array(file: Readable, axes: int, where: Path, size: int | None) -> UInt8[Tensor, "*axes"]:
    """Read header and values of `size` bytes in all; None: not known, since the file is packed."""
    start = 4 + 4 * axes
    header = file.read(start)
    sizes = _parse_header(header, axes, where)
    needed = start + prod(sizes)
    if size is not None and size != needed:
        raise _size_error(size, needed, sizes, where)
    require_size(where.name, needed, where.parent)
    data = bytearray(needed - start)
    found = _fill(file, data)
    if found < len(data) or file.read(1):
        shown = "more" if found == len(data) else f"{start + found:,}"
        raise _size_error(shown, needed, sizes, where)
    return torch.frombuffer(data, dtype=torch.uint8).view(sizes)


def _fill(file: Readable, data: bytearray) -> int:
    """Read into `data` until it is full or the file ends; return how many bytes were read."""
    found, view = 0, memoryview(data)
    while found < len(data) and (block := file.read(min(BLOCK_BYTES, len(data) - found))):
        view[found : found + len(block)] = block
        found += len(block)
    return found


def _size_error(size: int | str, needed: int, sizes: tuple[int, ...], where: Path) -> QkvError:
    shape = " x ".join(f"{size:,}" for size in sizes)
    found = f"{size:,}" if isinstance(size, int) else size
    return QkvError(f"{where.name} has {found} bytes, but the header gives {shape}: {needed:,} bytes", where.parent)


def _parse_header(data: bytes, axes: int, where: Path) -> tuple[int, ...]:
    start = 4 + 4 * axes
    if len(data) < start:
        raise QkvError(f"{where.name} has {len(data)} bytes, but the header alone needs {start}", where.parent)
    expected, magic = bytes((0, 0, UINT8_TYPE, axes)), data[:4]
    if magic != expected:
        raise QkvError(
            f"{where.name} must begin with the magic number {expected.hex(' ')} (uint8 with {axes} "
            f"ax{'es' if axes > 1 else 'is'}), got {magic.hex(' ')}",
            where.parent,
        )
    sizes: tuple[int, ...] = struct.unpack(f">{axes}I", data[4:start])
    if not prod(sizes):
        raise QkvError(f"{where.name} is empty: the header gives {' x '.join(map(str, sizes))}", where.parent)
    return sizes
