"""The header of a safetensors file: names, types and shapes of its tensors, without reading them.

    8 bytes: length of the header   {"a.weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}   data

A header can be checked against a model before anything of its size is allocated.
"""

import os
from math import prod
from pathlib import Path
from typing import NamedTuple

from qkv.errors import QkvError
from qkv.storage.atomic import open_file
from qkv.storage.json import load_json

MAX_HEADER_BYTES = 16 * 2**20
"""Largest header that is read: about 150,000 tensors."""
TYPE_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
"""Type -> bytes per value, of those that torch loads everywhere."""


class TensorHeader(NamedTuple):
    """Type and shape of a tensor."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def is_float(self) -> bool:
        """Whether its values are floating-point numbers."""
        return "F" in self.dtype


def read_header(path: Path) -> dict[str, TensorHeader]:
    """Return type and shape of each tensor of a file; raise if the sizes do not add up to the size of the file."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise _damaged(path, f"it has {size:,} bytes, too few for its header")
        if length > MAX_HEADER_BYTES:
            raise _damaged(path, f"its header has {length:,} bytes, but at most {MAX_HEADER_BYTES:,} are read")
        record = load_json(file.read(length), path)
    record.pop("__metadata__", None)
    tensors, total = {}, 0
    for name, entry in record.items():
        match entry:
            case {"dtype": str(dtype), "shape": list(shape)} if dtype in TYPE_BYTES and _are_sizes(shape):
                tensors[name] = TensorHeader(dtype, tuple(shape))
                total += TYPE_BYTES[dtype] * prod(shape)
            case _:
                raise _damaged(path, f"its header does not give the type and shape of {name[:80]}")
    if 8 + length + total != size:
        raise _damaged(path, f"it has {size:,} bytes, but its header gives {8 + length + total:,}")
    return tensors


def _are_sizes(shape: list[object]) -> bool:
    return all(type(size) is int and 0 <= size < 2**63 for size in shape)


def _damaged(path: Path, reason: str) -> QkvError:
    return QkvError(f"{path.name} is damaged or not safetensors: {reason}", path.parent)
