"""IDX files, the format of MNIST: a magic number, the sizes of the axes, then the numbers.

00 00 08 03   00 00 ea 60   00 00 00 1c   00 00 00 1c   ...        (08: bytes; 03: three axes; 60,000 x 28 x 28)
"""

import gzip
import struct
import zlib
from math import prod
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Tensor

from qkv.storage import QkvError, open_file

BYTES = 8
"""The only kind of numbers that pictures and labels have."""


def read_idx(path: Path | str, axes: int) -> UInt8[Tensor, "*axes"]:
    """The bytes of a file, plain or gzipped, with this many axes: 3 for pictures, 1 for labels."""
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
    """The same of the contents of a file; `where` is for the error."""
    start = 4 + 4 * axes
    if len(data) < start:
        raise QkvError(f"{where.name} has {len(data)} bytes, but its header alone needs {start}", where.parent)
    wanted, magic = bytes((0, 0, BYTES, axes)), data[:4]
    if magic != wanted:
        raise QkvError(
            f"{where.name} begins with the magic number {magic.hex(' ')}, but {wanted.hex(' ')} is expected at byte 0 "
            f"(bytes with {axes} ax{'es' if axes > 1 else 'is'})",
            where.parent,
        )
    sizes = struct.unpack(f">{axes}I", data[4:start])
    if len(data) != start + prod(sizes):
        shape = " x ".join(f"{size:,}" for size in sizes)
        raise QkvError(
            f"{where.name} has {len(data):,} bytes, but its header says {shape}: {start + prod(sizes):,} bytes",
            where.parent,
        )
    if not prod(sizes):
        raise QkvError(f"{where.name} holds nothing: its header says {' x '.join(map(str, sizes))}", where.parent)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8, offset=start).view(sizes)
