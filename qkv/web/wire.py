"""What the page is sent: a small JSON record, then the tensors as they lie in memory.

    4 bytes: length of the record (little-endian) | the record, UTF-8, spaces to a multiple of 4 | tensor | tensor ...

A float as JSON takes some twenty bytes and a parser's time, here it takes four and none. The same bytes,
in base64, stand in a saved page, so that both are read by the same lines.
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
class Answer:
    """What was asked for: plain data, and tensors by name (uint8, or sent as float32)."""

    record: dict[str, Any]
    tensors: dict[str, Tensor] = field(default_factory=dict)


def pack(answer: Answer) -> bytes:
    """The answer as bytes."""
    tensors = {name: _plain(tensor) for name, tensor in answer.tensors.items()}
    listed = [{"name": name, "type": _TYPES[t.dtype], "shape": list(t.shape)} for name, t in tensors.items()]
    header = json.dumps({**finite(answer.record), "tensors": listed}, ensure_ascii=True, allow_nan=False).encode()
    header += b" " * (-len(header) % 4)
    return b"".join([len(header).to_bytes(4, "little"), header, *(_bytes(tensor) for tensor in tensors.values())])


def finite(value: Any) -> Any:
    """The same data with None where a number is NaN or infinite, which JSON has no word for."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


def _plain(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().cpu()
    return (tensor if tensor.dtype == torch.uint8 else tensor.float()).contiguous()


def _bytes(tensor: Tensor) -> bytes:
    """As it lies in memory; a copy, by the address, since numpy is not a dependency."""
    if not tensor.numel():
        return b""
    data = ctypes.string_at(tensor.data_ptr(), tensor.nbytes)
    return data + b"\0" * (-len(data) % 4)
