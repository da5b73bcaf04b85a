"""Which tokens are real: what a model takes for a mask, and when its numbers may be looked at."""

import torch
from torch import Tensor

from qkv.shapes import Mask


def require_mask(mask: Mask | None, tokens: Tensor, name: str = "mask", true: str = "a real token") -> None:
    """Refuse what is no bool for each token: tensors of another shape would broadcast, numbers would be places."""
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


def may_look(mask: Mask) -> bool:
    """Whether there are numbers to look at, the same at every call.

    Not while a graph is made, of which other masks will be asked; nor in a tensor that stands for many, as in
    `torch.vmap`, or for none, as those of the device meta and of a FakeTensorMode.
    """
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return False
    if type(mask) is not Tensor or mask.is_meta or torch._C._functorch.is_functorch_wrapped_tensor(mask):
        return False
    return not (mask.is_cuda and torch.cuda.is_current_stream_capturing())
