"""A scan over chunks of a sequence that carries a state, with a backward that recomputes each chunk.

    carry_0 given;    carry_(c+1), output_c = body(constants, carry_c, chunk c of the sequences)

The forward checkpoints only the carry at the start of each chunk. The backward visits the chunks from last
to first, runs `body` again and lets autograd differentiate that one chunk. So memory stays that of the
inputs, whatever a chunk allocates inside, and no gradient is written by hand.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor

from qkv.attention.internal.double_backward import forbid_double_backward
from qkv.attention.internal.precision import no_autocast

Tensors = tuple[Tensor, ...]
Body = Callable[[Tensors, Tensors, Tensors], tuple[Tensors, Tensor | None]]


def chunked_scan(
    body: Body, constants: Tensors, carry: Tensors, sequences: Tensors, chunk: int
) -> tuple[Tensors, Tensor | None]:
    """Return the last carry and the outputs of all chunks, concatenated along the time axis (-2).

    `body` must be a pure function of its tensors; it runs with autocast disabled. If it returns None instead of
    an output, so does the scan. A double backward raises. Under the transforms of torch.func the plain loop is
    differentiated, which keeps every intermediate of its chunks.
    """
    inputs = (*constants, *carry, *sequences)
    needs_backward = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
    if not needs_backward or torch._C._are_functorch_transforms_active():
        return _run_forward(body, constants, carry, sequences, chunk)
    results = _ChunkedScan.apply(body, chunk, len(constants), len(carry), *inputs)
    return results[: len(carry)], results[len(carry)] if len(results) > len(carry) else None


def _chunk_bounds(sequences: Tensors, chunk: int) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of each chunk; an empty sequence is one empty chunk, so that it has an output."""
    length = sequences[0].shape[-2]
    return ((start, min(start + chunk, length)) for start in range(0, max(length, 1), chunk))


def _slice_time(sequences: Tensors, start: int, end: int) -> Tensors:
    return tuple(x[..., start:end, :] for x in sequences)


@cache
def keep_freed_memory() -> None:
    """Make the C library reuse the memory that a chunk frees, instead of returning it to the system.

    glibc returns freed memory above a threshold, which rises to the largest block ever freed (up to
    32 MiB). One such block, never touched, costs nothing and saves a page fault for every 4 KiB of
    every chunk's temporaries.
    """
    torch.empty(2**24, dtype=torch.uint8)


def _run_forward(
    body: Body,
    constants: Tensors,
    carry: Tensors,
    sequences: Tensors,
    chunk: int,
    checkpoints: list[Tensors] | None = None,
) -> tuple[Tensors, Tensor | None]:
    """Run the loop; `checkpoints` collects the carry at the start of each chunk."""
    if not torch.compiler.is_compiling():  # Dynamo warns about a cached function
        keep_freed_memory()
    outputs = None
    for start, end in _chunk_bounds(sequences, chunk):
        if checkpoints is not None:
            checkpoints.append(carry)
        with no_autocast(sequences[0]):
            carry, output = body(constants, carry, _slice_time(sequences, start, end))
        if output is not None:
            if outputs is None:
                outputs = output.new_empty(*output.shape[:-2], sequences[0].shape[-2], output.shape[-1])
            outputs[..., start:end, :] = output
    return carry, outputs


class _ChunkedScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, body: Body, chunk: int, constant_count: int, carry_count: int, *inputs: Tensor) -> Any:
        ctx.body, ctx.chunk, ctx.constant_count, ctx.carry_count = body, chunk, constant_count, carry_count
        constants, rest = inputs[:constant_count], inputs[constant_count:]
        carry, sequences = rest[:carry_count], rest[carry_count:]
        checkpoints: list[Tensors] = []
        last, outputs = _run_forward(body, constants, carry, sequences, chunk, checkpoints)
        ctx.save_for_backward(*constants, *sequences, *(x for checkpoint in checkpoints for x in checkpoint))
        # an input that is returned unchanged must still be a new tensor to autograd
        last = tuple(x.view_as(x) for x in last)
        return last if outputs is None else (*last, outputs)

    @staticmethod
    @forbid_double_backward
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        saved = ctx.saved_tensors
        sequence_count = len(ctx.needs_input_grad) - 4 - ctx.constant_count - ctx.carry_count
        constants, saved = saved[: ctx.constant_count], saved[ctx.constant_count :]
        sequences, saved = saved[:sequence_count], saved[sequence_count:]
        checkpoints = [saved[i : i + ctx.carry_count] for i in range(0, len(saved), ctx.carry_count)]

        carry_gradient = gradients[: ctx.carry_count]
        output_gradient = gradients[ctx.carry_count] if len(gradients) > ctx.carry_count else None
        constant_gradients = [torch.zeros_like(x) for x in constants]
        sequence_gradients = [torch.zeros_like(x) if x.is_floating_point() else None for x in sequences]
        bounds = list(_chunk_bounds(sequences, ctx.chunk))
        for (start, end), carry in reversed(list(zip(bounds, checkpoints, strict=True))):
            pieces = _slice_time(sequences, start, end)
            chunk_gradient = None if output_gradient is None else output_gradient[..., start:end, :]
            found = _chunk_gradients(ctx.body, (constants, carry, pieces), carry_gradient, chunk_gradient)
            for total, part in zip(constant_gradients, found[0], strict=True):
                total.add_(part)
            carry_gradient = tuple(found[1])
            for whole, part in zip(sequence_gradients, found[2], strict=True):
                if whole is not None:
                    whole[..., start:end, :] = part
        return None, None, None, None, *constant_gradients, *carry_gradient, *sequence_gradients


def _chunk_gradients(
    body: Body, inputs: tuple[Tensors, Tensors, Tensors], carry_gradient: Tensors, output_gradient: Tensor | None
) -> list[list[Tensor]]:
    """Recompute one chunk and return the gradients of its constants, carry and pieces (zeros for bool tensors)."""
    with torch.enable_grad(), no_autocast(inputs[2][0]):
        leaves = [[x.detach().requires_grad_(x.is_floating_point()) for x in group] for group in inputs]
        carry, output = body(*(tuple(group) for group in leaves))
        results, result_gradients = [*carry], [*carry_gradient]
        if output is not None:
            assert output_gradient is not None
            results.append(output)
            result_gradients.append(output_gradient)
        pairs = zip(results, result_gradients, strict=True)
        differentiable = [(result, gradient) for result, gradient in pairs if result.requires_grad]
        found = iter(
            torch.autograd.grad(
                [result for result, _ in differentiable],
                [x for group in leaves for x in group if x.requires_grad],
                [gradient for _, gradient in differentiable],
                allow_unused=True,
                materialize_grads=True,
            )
        )
    return [[next(found) if x.requires_grad else torch.zeros_like(x) for x in group] for group in leaves]
