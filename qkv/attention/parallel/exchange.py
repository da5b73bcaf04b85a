"""One exchange of several tensors between processes, with its backward.

    forward    all-gather: every process receives the tensors of all
    backward   all-to-all: the gradient of a tensor goes back to the process it came from, and is added there

Tensors of any dtype travel as bytes of one message. Only what a process uses has a gradient: if it uses the tensors of
the processes before it, its gradients go to those alone.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from qkv.attention.internal.double_backward import forbid_double_backward
from qkv.attention.internal.precision import upcast_dtype

Group = dist.ProcessGroup | None
Form = tuple[tuple[int, ...], torch.dtype]
"""Shape and dtype of a tensor."""


def gather_tensors(tensors: tuple[Tensor, ...], group: Group, *, causal: bool) -> tuple[Tensor, ...]:
    """Return the tensors of all processes or, if causal, of those before this one: each (processes, *shape).

    Every process must give tensors of the same shapes and dtypes. The backward is an exchange, too: `bind` makes sure
    that every process takes part in it.
    """
    found: tuple[Tensor, ...] = _Gather.apply(group, causal, *tensors)
    return found


def bind(x: Tensor, gathered: tuple[Tensor, ...]) -> Tensor:
    """Return x with `gathered` as further inputs of its backward, which they change nothing of.

    A process that uses nothing of an exchange would skip its backward, where the others wait for it.
    """
    bound: Tensor = _Bind.apply(x, *gathered)
    return bound


def gather_integers(values: tuple[int, ...], group: Group, device: torch.device) -> list[tuple[int, ...]]:
    """Return each of the values of all processes: one tuple per value."""
    own = torch.tensor(values, dtype=torch.int64, device=device)
    rows = _all_gather(_as_bytes(own), group).view(torch.int64).view(-1, len(values))
    return [tuple(column) for column in rows.T.tolist()]


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: Group, causal: bool, *tensors: Tensor) -> Any:
        rank, parts = dist.get_rank(group), dist.get_world_size(group)
        message = torch.cat([_as_bytes(x) for x in tensors])
        received = _all_gather(message, group).view(parts, -1)
        found = _unpack(received[:rank] if causal else received, [(x.shape, x.dtype) for x in tensors])
        ctx.group, ctx.causal = group, causal
        ctx.mark_non_differentiable(*(x for x in found if not x.is_floating_point()))
        return found

    @staticmethod
    @forbid_double_backward
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        group, needed = ctx.group, ctx.needs_input_grad[2:]
        rank, parts = dist.get_rank(group), dist.get_world_size(group)
        sent = [x for x, wanted in zip(gradients, needed, strict=True) if wanted]
        slots = rank if ctx.causal else parts
        forms = [(x.shape[1:], x.dtype) for x in sent]
        messages = torch.cat(
            [_as_bytes(x).view(slots, _bytes_of(form)) for x, form in zip(sent, forms, strict=True)], 1
        )
        size = messages.shape[1]
        to_each = [size * (not ctx.causal or other < rank) for other in range(parts)]
        from_each = [size * (not ctx.causal or other > rank) for other in range(parts)]
        received = messages.new_empty(sum(from_each))
        dist.all_to_all_single(received, messages.flatten(), from_each, to_each, group=group)
        arrived = _unpack(received.view(parts - rank - 1 if ctx.causal else parts, size), forms)
        summed = (x.sum(0, dtype=upcast_dtype(x.dtype)).to(x.dtype) for x in arrived)
        return None, None, *(next(summed) if wanted else None for wanted in needed)


class _Bind(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *gathered: Tensor) -> Tensor:
        ctx.count = len(gathered)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient, *(None,) * ctx.count


def _all_gather(message: Tensor, group: Group) -> Tensor:
    """Return the bytes of all processes, one after the other."""
    received = message.new_empty(message.numel() * dist.get_world_size(group))
    # torch 2.13 renamed it, and warns about the old name
    gather = dist.all_gather_single if hasattr(dist, "all_gather_single") else dist.all_gather_into_tensor
    gather(received, message, group=group)
    return received


def _as_bytes(x: Tensor) -> Tensor:
    return x.contiguous().flatten().view(torch.uint8)


def _bytes_of(form: Form) -> int:
    shape, dtype = form
    return math.prod(shape) * dtype.itemsize


def _unpack(messages: Tensor, forms: Sequence[Form]) -> tuple[Tensor, ...]:
    """Split messages (processes, bytes) into tensors of these forms: each (processes, *shape)."""
    pieces = messages.split([_bytes_of(form) for form in forms], 1)
    # a clone is aligned to its dtype, which a slice of bytes need not be
    return tuple(
        piece.clone(memory_format=torch.contiguous_format).flatten().view(dtype).view(len(messages), *shape)
        for piece, (shape, dtype) in zip(pieces, forms, strict=True)
    )
