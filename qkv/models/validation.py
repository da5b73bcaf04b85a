"""Checks of configurations and of masks."""

from typing import Any

import torch
from torch import Tensor

from qkv.shapes import Mask

MAX_SIZE = 2**31 - 1
"""Largest width, and the like."""
MAX_LENGTH = 2**24
"""Largest `max_length`: room for 16.8 million tokens."""
MAX_LAYERS = 10_000
"""Maximum number of layers: even a small layer takes time and memory in Python."""


def require_at_least(lowest: int, config: Any, *names: str) -> None:
    """Raise for the first of these sizes that is not an integer from `lowest` to the largest size of its kind."""
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, int):
            raise TypeError(f"{name} must be an integer, got {value!r}")
        if value < lowest:
            raise ValueError(f"{name} must be at least {lowest}, got {value}")
        highest = MAX_LENGTH if name == "max_length" else MAX_LAYERS if name.endswith("layers") else MAX_SIZE
        if value > highest:
            raise ValueError(f"{name} must be at most {highest:,}, got {value:,}")


def require_length(length: int, max_length: int) -> None:
    """Raise for a sequence that is longer than `max_length`."""
    if length > max_length:
        raise ValueError(f"a sequence of {length} exceeds max_length={max_length}")


def require_mask(mask: Mask | None, tokens: Tensor, name: str = "mask", true: str = "a real token") -> None:
    """Raise unless the mask has one bool per token: other shapes would broadcast, and integers would be indices."""
    if mask is None:
        return
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        what = f"{mask.dtype}" if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"{name} must be a bool tensor (True = {true}), got {what}")
    if mask.shape != tokens.shape[:2]:
        raise ValueError(
            f"{name} must have shape (batch, time) = {tuple(tokens.shape[:2])}, a bool for each token, "
            f"got {tuple(mask.shape)}"
        )


def values_readable(mask: Mask) -> bool:
    """Return whether the values of a mask can be read eagerly.

    They cannot while tracing, compiling or capturing a CUDA graph, which later runs with other masks; nor under
    `torch.vmap`, on the meta device or in a FakeTensorMode.
    """
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return False
    if type(mask) is not Tensor or mask.is_meta or torch._C._functorch.is_functorch_wrapped_tensor(mask):
        return False
    return not (mask.is_cuda and torch.cuda.is_current_stream_capturing())
