"""Torch operators with little between a call and its kernels.

What `torch.library.custom_op` asks on the way is a good part of what forward and backward of a short attention cost the
host. These are defined and dispatched in the same way, and so known to torch.compile, to modes that count and to
autograd; only what no operator here needs is left out.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from qkv.attention.internal.double_backward import differentiable_once

LIBRARY = torch.library.Library("qkv", "FRAGMENT")

Save = Callable[[Any, tuple[Any, ...], Any], None]
"""(context, arguments, results): keep what the backward needs."""
Differentiate = Callable[..., tuple[Any, ...]]
"""(context, gradients of the results...): the gradients of all arguments."""


def define(name: str, function: Callable[..., Any], fake: Callable[..., Any]) -> torch._ops.OpOverload:
    """qkv::NAME, a function that changes none of its arguments; `fake` gives its results without their numbers."""
    LIBRARY.define(name + torch.library.infer_schema(function, mutates_args=()))
    LIBRARY.impl(name, function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"qkv::{name}", fake, lib=LIBRARY)
    operator: torch._ops.OpOverload = getattr(torch.ops.qkv, name).default
    return operator


def differentiate(operator: torch._ops.OpOverload, save: Save, backward: Differentiate) -> None:
    """Give the operator a gradient; that of a gradient is an error, where torch would say nothing and take zero."""

    class Differentiated(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, keys: Any, *arguments: Any) -> Any:
            results = below(keys, arguments)
            save(ctx, arguments, results)
            return results

        @staticmethod
        @differentiable_once
        def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
            return None, *backward(ctx, *gradients)

    def below(keys: Any, arguments: tuple[Any, ...]) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return operator.redispatch(keys & torch._C._after_autograd_keyset, *arguments)

    def call(keys: Any, *arguments: Any) -> Any:
        if torch.is_grad_enabled() and any(x.requires_grad for x in _tensors(arguments)):
            return Differentiated.apply(keys, *arguments)
        return below(keys, arguments)

    LIBRARY.impl(operator._opname, call, "Autograd", with_keyset=True)


def _tensors(arguments: tuple[Any, ...]) -> Iterator[Tensor]:
    return (x for x in arguments if isinstance(x, Tensor))
