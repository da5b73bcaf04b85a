"""IDX files, the format of MNIST: a magic number, the sizes of the axes, then the values.

00 00 08 03   00 00 ea 60   00 00 00 1c   00 00 00 1c   ...        (08: uint8; 03: three axes; 60,000 x 28 x 28)
"""

import gzip
import struct
import zlib
from math import prod
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Tensor

from qkv.errors import QkvError
from qkv.storage import open_file

UINT8_TYPE = 8
"""Type code of unsigned bytes, the only one that image and label files use."""


def read_idx(path: Path | str, axes: int) -> UInt8[Tensor, "*axes"]:
    """Read a file, plain or gzipped, with this many axes: 3 for images, 1 for labels."""
    path = Path(path)
    with open_file(path) as file:
        data = file.read()
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise QkvError(f"{path.name} is damaged or truncated: {error}", path.parent) from None
    return parse_idx(data, axes, path)


def parse_idx(data: bytes, axes: int, where: Path) -> UInt8[Tensor, "*axes"]:
    """Parse the contents of a file; `where` appears in errors."""
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
    sizes = struct.unpack(f">{axes}I", data[4:start])
    if len(data) != start + prod(sizes):
        shape = " x ".join(f"{size:,}" for size in sizes)
        raise QkvError(
            f"{where.name} has {len(data):,} bytes, but the header gives {shape}: {start + prod(sizes):,} bytes",
            where.parent,
        )
    if not prod(sizes):
        raise QkvError(f"{where.name} is empty: the header gives {' x '.join(map(str, sizes))}", where.parent)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8, offset=start).view(sizes)
