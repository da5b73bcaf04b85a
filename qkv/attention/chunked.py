"""A loop over chunks of a sequence that carries a state, with a backward that replays it.

    carry_0 given;    carry_(c+1), output_c = body(constants, carry_c, chunk c of the sequences)

The forward keeps only the carry at each chunk's start. The backward walks the chunks from the last
to the first, runs `body` again on each and lets autograd differentiate that one chunk. So memory
stays that of the inputs, whatever a chunk builds inside, and no gradient is written by hand.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor

from qkv.attention.base import unnarrowed
from qkv.attention.internal.double_backward import differentiable_once

Tensors = tuple[Tensor, ...]
Body = Callable[[Tensors, Tensors, Tensors], tuple[Tensors, Tensor | None]]


def scan(
    body: Body, constants: Tensors, carry: Tensors, sequences: Tensors, chunk: int
) -> tuple[Tensors, Tensor | None]:
    """The last carry and the outputs of all chunks, joined along the time axis (the last but one).

    `body` must be a pure function of its tensors; it runs outside of any autocast region. If it gives None
    instead of an output, so does the scan. Second derivatives are refused, except under the transforms of torch.func:
    those differentiate the loop as it stands, and keep all that its chunks build.
    """
    inputs = (*constants, *carry, *sequences)
    recorded = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
    if not recorded or torch._C._are_functorch_transforms_active():
        return _run(body, constants, carry, sequences, chunk)
    results = _Scan.apply(body, chunk, len(constants), len(carry), *inputs)
    return results[: len(carry)], results[len(carry)] if len(results) > len(carry) else None


def _bounds(sequences: Tensors, chunk: int) -> Iterator[tuple[int, int]]:
    """Where chunks start and end; an empty sequence is one empty chunk, so that it too has an output."""
    length = sequences[0].shape[-2]
    return ((start, min(start + chunk, length)) for start in range(0, max(length, 1), chunk))


def _cut(sequences: Tensors, start: int, end: int) -> Tensors:
    return tuple(x[..., start:end, :] for x in sequences)


@cache
def _keep_freed_memory() -> None:
    """Let the C library keep what a chunk frees for the next one, instead of returning it to the system.

    glibc returns freed memory above a threshold, which rises to the largest block ever freed (up to
    32 MiB). One such block, never touched, costs nothing and saves a page fault for every 4 KiB of
    every chunk's temporaries.
    """
    torch.empty(2**24, dtype=torch.uint8)


def _run(
    body: Body, constants: Tensors, carry: Tensors, sequences: Tensors, chunk: int, diary: list[Tensors] | None = None
) -> tuple[Tensors, Tensor | None]:
    """The loop itself; `diary` collects the carry at the start of each chunk."""
    _keep_freed_memory()
    outputs = None
    for start, end in _bounds(sequences, chunk):
        if diary is not None:
            diary.append(carry)
        with unnarrowed(sequences[0]):
            carry, output = body(constants, carry, _cut(sequences, start, end))
        if output is not None:
            if outputs is None:
                outputs = output.new_empty(*output.shape[:-2], sequences[0].shape[-2], output.shape[-1])
            outputs[..., start:end, :] = output
    return carry, outputs


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, body: Body, chunk: int, constants: int, carries: int, *inputs: Tensor) -> Any:
        ctx.body, ctx.chunk, ctx.constants, ctx.carries = body, chunk, constants, carries
        diary: list[Tensors] = []
        fixed, carry, sequences = (
            inputs[:constants],
            inputs[constants : constants + carries],
            inputs[constants + carries :],
        )
        last, outputs = _run(body, fixed, carry, sequences, chunk, diary)
        ctx.save_for_backward(*fixed, *sequences, *(x for entry in diary for x in entry))
        # an input handed through unchanged must still be a new tensor to autograd
        last = tuple(x.view_as(x) for x in last)
        return last if outputs is None else (*last, outputs)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        saved = ctx.saved_tensors
        sequences_count = len(ctx.needs_input_grad) - 4 - ctx.constants - ctx.carries
        fixed, saved = saved[: ctx.constants], saved[ctx.constants :]
        sequences, diary = saved[:sequences_count], saved[sequences_count:]
        entries = [diary[i : i + ctx.carries] for i in range(0, len(diary), ctx.carries)]

        carry_gradient = gradients[: ctx.carries]
        output_gradient = gradients[ctx.carries] if len(gradients) > ctx.carries else None
        fixed_gradient = [torch.zeros_like(x) for x in fixed]
        sequence_gradient = [torch.zeros_like(x) if x.is_floating_point() else None for x in sequences]
        for (start, end), carry in reversed(list(zip(_bounds(sequences, ctx.chunk), entries, strict=True))):
            pieces = _cut(sequences, start, end)
            given = None if output_gradient is None else output_gradient[..., start:end, :]
            found = _replay(ctx.body, (fixed, carry, pieces), carry_gradient, given)
            for total, part in zip(fixed_gradient, found[0], strict=True):
                total.add_(part)
            carry_gradient = tuple(found[1])
            for whole, part in zip(sequence_gradient, found[2], strict=True):
                if whole is not None:
                    whole[..., start:end, :] = part
        return None, None, None, None, *fixed_gradient, *carry_gradient, *sequence_gradient


def _replay(
    body: Body, inputs: tuple[Tensors, Tensors, Tensors], carry_gradient: Tensors, output_gradient: Tensor | None
) -> list[list[Tensor]]:
    """Gradients of one chunk with respect to its constants, carry and pieces (zeros for what is not a number)."""
    with torch.enable_grad(), unnarrowed(inputs[2][0]):
        leaves = [[x.detach().requires_grad_(x.is_floating_point()) for x in group] for group in inputs]
        carry, output = body(*(tuple(group) for group in leaves))
        ends, starts = [*carry], [*carry_gradient]
        if output is not None:
            assert output_gradient is not None
            ends.append(output)
            starts.append(output_gradient)
        reached = [(end, start) for end, start in zip(ends, starts, strict=True) if end.requires_grad]
        numbers = [x for group in leaves for x in group if x.requires_grad]
        found = iter(
            torch.autograd.grad(
                [end for end, _ in reached],
                numbers,
                [start for _, start in reached],
                allow_unused=True,
                materialize_grads=True,
            )
        )
    return [[next(found) if x.requires_grad else torch.zeros_like(x) for x in group] for group in leaves]
