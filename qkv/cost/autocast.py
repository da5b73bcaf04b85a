"""Autocast on torch's meta device, which has none: casts as on CUDA, so that saved tensors have their sizes."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

LOWERED = frozenset(
    {
        *(functional.linear, functional.conv1d, functional.conv2d, functional.scaled_dot_product_attention),
        *(torch.matmul, torch.mm, torch.bmm, torch.addmm, torch.baddbmm, torch.einsum, torch.conv1d, torch.conv2d),
        *(Tensor.matmul, Tensor.__matmul__, Tensor.mm, Tensor.bmm),
    }
)
"""Functions that autocast runs in half precision."""
RAISED = frozenset(
    {
        *(functional.layer_norm, functional.softmax, functional.log_softmax, functional.cross_entropy),
        *(torch.softmax, torch.log_softmax, Tensor.softmax, Tensor.log_softmax),
    }
)
"""Functions that autocast runs in float32."""


class MetaAutocast(TorchFunctionMode):
    """Context manager that casts the arguments of functions on meta tensors as `torch.autocast("cuda")` does.

    A weight is cast once, and its copy is kept, as by torch's cache. Dropout keeps a mask of one byte per value, as on
    CUDA.
    """

    def __init__(self, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.dtype = dtype
        self.enabled = True
        """Whether it casts; a region without autocast sets this to False."""
        self._copies: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.dropout and args[0].is_meta:
            return _dropout(*args, **{name: x for name, x in kwargs.items() if name != "inplace"})
        if not self.enabled or func not in LOWERED | RAISED:
            return func(*args, **kwargs)
        dtype = self.dtype if func in LOWERED else torch.float32
        return func(*(self._cast(x, dtype) for x in args), **{name: self._cast(x, dtype) for name, x in kwargs.items()})

    def copies(self) -> list[Tensor]:
        """Return the copies of weights in half precision."""
        return [copy for _, copy in self._copies.values()]

    def _cast(self, x: Any, dtype: torch.dtype) -> Any:
        if isinstance(x, tuple | list):
            return type(x)(self._cast(one, dtype) for one in x)
        if not isinstance(x, Tensor) or not x.is_meta or not x.is_floating_point() or x.dtype == torch.float64:
            return x
        if not (x.is_leaf and x.requires_grad) or x.dtype == dtype:
            return x.to(dtype)
        if id(x) not in self._copies:
            self._copies[id(x)] = x, x.to(dtype)  # the weight too, so that its id is not given to another
        return self._copies[id(x)][1]


def _dropout(x: Tensor, p: float = 0.5, training: bool = True, *_: Any) -> Tensor:
    return torch.native_dropout(x, p, True)[0] if training and p else x
