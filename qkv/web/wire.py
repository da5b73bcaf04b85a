"""Wire format of the page's API: a small JSON record, then the raw bytes of tensors.

    4 bytes: length of the record (little-endian) | record, UTF-8, padded with spaces to 4 bytes | tensor | tensor ...

A float takes about twenty bytes and a parser's time as JSON; here it takes four bytes and none. A saved page holds
the same bytes in base64, so both are read by the same code (`static/api.js`).
"""

import ctypes
import json
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

_TYPES = {torch.float32: "f4", torch.uint8: "u1"}


@dataclass(frozen=True)
class Response:
    """A JSON record and tensors by name (uint8, or sent as float32)."""

    record: dict[str, Any]
    tensors: dict[str, Tensor] = field(default_factory=dict)


def pack(response: Response) -> bytes:
    """Return the response as bytes."""
    tensors = {name: _to_wire_type(tensor) for name, tensor in response.tensors.items()}
    listed = [{"name": name, "type": _TYPES[t.dtype], "shape": list(t.shape)} for name, t in tensors.items()]
    record = {**finite_or_none(response.record), "tensors": listed}
    header = json.dumps(record, ensure_ascii=True, allow_nan=False).encode()
    header += b" " * (-len(header) % 4)
    return b"".join([len(header).to_bytes(4, "little"), header, *(_bytes(tensor) for tensor in tensors.values())])


def finite_or_none(value: Any) -> Any:
    """Return the same data with None for NaN and infinities, which JSON cannot express."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): finite_or_none(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite_or_none(item) for item in value]
    return value


def _to_wire_type(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().cpu()
    return (tensor if tensor.dtype == torch.uint8 else tensor.float()).contiguous()


def _bytes(tensor: Tensor) -> bytes:
    """Copy the tensor's memory by its address, since numpy is not a dependency; padded to 4 bytes."""
    if not tensor.numel():
        return b""
    data = ctypes.string_at(tensor.data_ptr(), tensor.nbytes)
    return data + b"\0" * (-len(data) % 4)
