"""Precision rules: accumulate in at least float32, and never let autocast lower it again."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

AUTOCAST_DEVICES = frozenset(name for name in ("cpu", "cuda", "mps", "xpu") if torch.amp.is_autocast_available(name))
"""Device types that support autocast. A constant, because torch.compile cannot trace the query in torch 2.11."""


def upcast(x: Tensor) -> Tensor:
    """Return half-precision `x` as float32, else `x` itself: sums, states and normalizers need at least that."""
    return x.float() if upcast_dtype(x.dtype) != x.dtype else x


def upcast_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that `upcast` gives."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def no_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Disable autocast on the device of `x`, which would undo `upcast`.

    A backward runs outside the autocast region of its forward. With this, both compute the same.
    """
    device_type = x.device.type
    active = device_type in AUTOCAST_DEVICES and torch.is_autocast_enabled(device_type)
    # entering a region takes ten microseconds, so only where one is active
    return torch.autocast(device_type, enabled=False) if active else nullcontext()
