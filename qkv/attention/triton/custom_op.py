"""Torch operators with little overhead between a call and its kernels.

The checks of `torch.library.custom_op` take a good part of the host time of a short attention, forward and backward.
These operators are defined and dispatched in the same way, so torch.compile, dispatch modes and autograd know
them; what no operator here needs is left out.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from qkv.attention.internal.double_backward import forbid_double_backward

LIBRARY = torch.library.Library("qkv", "FRAGMENT")

SaveForBackward = Callable[[Any, tuple[Any, ...], Any], None]
"""(context, arguments, results): saves what the backward needs."""
BackwardFunction = Callable[..., tuple[Any, ...]]
"""(context, gradients of the results...): the gradients of all arguments."""


def define(name: str, function: Callable[..., Any], fake: Callable[..., Any]) -> torch._ops.OpOverload:
    """Define qkv::NAME, a function that mutates none of its arguments; `fake` returns results of the right shapes."""
    LIBRARY.define(name + torch.library.infer_schema(function, mutates_args=()))
    LIBRARY.impl(name, function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"qkv::{name}", fake, lib=LIBRARY)
    operator: torch._ops.OpOverload = getattr(torch.ops.qkv, name).default
    return operator


def register_backward(operator: torch._ops.OpOverload, save: SaveForBackward, backward: BackwardFunction) -> None:
    """Give the operator a gradient; a double backward raises, where torch would silently return zero."""

    class Differentiated(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, keys: Any, *arguments: Any) -> Any:
            results = redispatch(keys, arguments)
            save(ctx, arguments, results)
            return results

        @staticmethod
        @forbid_double_backward
        def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
            return None, *backward(ctx, *gradients)

    def redispatch(keys: Any, arguments: tuple[Any, ...]) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return operator.redispatch(keys & torch._C._after_autograd_keyset, *arguments)

    def call(keys: Any, *arguments: Any) -> Any:
        if torch.is_grad_enabled() and any(x.requires_grad for x in _tensors(arguments)):
            return Differentiated.apply(keys, *arguments)
        return redispatch(keys, arguments)

    LIBRARY.impl(operator._opname, call, "Autograd", with_keyset=True)


def _tensors(arguments: tuple[Any, ...]) -> Iterator[Tensor]:
    return (x for x in arguments if isinstance(x, Tensor))
