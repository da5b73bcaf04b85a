"""Buffers and launches of the kernels of the delta rule; see `kernels/delta_common.py` for the passes."""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.attention.triton.delta_plan import (
    JOIN_CONFIG,
    DeltaOperands,
    DeltaPlan,
    constants_of,
    value_tiles,
)
from qkv.attention.triton.kernels import delta_grad, delta_inverse, delta_pairs, delta_walk, delta_walk_back
from qkv.attention.triton.kernels.delta_common import SYSTEM_SIZE, DeltaSizes, DeltaStrides
from qkv.attention.triton.launch import empty_like_rows
from qkv.attention.triton.launch_cache import CachedKernel

PAIRS = CachedKernel(delta_pairs.delta_pairs, delta_pairs.PairsPointers, DeltaStrides, DeltaSizes, float)
INVERSE = CachedKernel(delta_inverse.delta_inverse, delta_inverse.InversePointers, DeltaSizes)
WALK = CachedKernel(delta_walk.delta_walk, delta_walk.WalkPointers, DeltaStrides, DeltaSizes)
JOIN = CachedKernel(delta_walk.delta_join, delta_walk.JoinPointers, int)
WALK_BACK = CachedKernel(delta_walk_back.delta_walk_back, delta_walk_back.WalkBackPointers, DeltaStrides, DeltaSizes)
GRAD = CachedKernel(delta_grad.delta_grad, delta_grad.DeltaGradPointers, DeltaStrides, DeltaSizes, float)


class SavedChunks(NamedTuple):
    """What the forward leaves for the backward."""

    gates: Tensor
    inverse: Tensor
    states: Tensor
    updates: Tensor
    factors: Tensor
    pairs: Tensor


def strides_of(*tensors: Tensor | None) -> tuple[tuple[int, ...], ...]:
    """Return the `DeltaStrides` of q, k, v, out, d_q, d_k, d_v, decay and beta."""
    return tuple((0, 0, 0) if x is None else x.stride()[:3] for x in tensors)


def forward_passes(
    plan: DeltaPlan, x: DeltaOperands, initial: Tensor | None, scale: float, needs_backward: bool
) -> tuple[Tensor, Tensor, SavedChunks]:
    """Return outputs, the last state, and what the backward needs."""
    out = x.q.new_empty(*x.q.shape[:3], plan.value_dim)
    final = x.q.new_empty(plan.batch, plan.heads, plan.key_dim, plan.value_dim, dtype=torch.float32)
    saved = SavedChunks(*(x.q.new_empty(shape, dtype=dtype) for shape, dtype in plan.saved_shapes(needs_backward)))
    if not plan.rows or not plan.chunks:
        return out, _copied(initial, final), saved
    chunks = saved if needs_backward else saved._replace(**_chunk_buffers(plan, x))
    prepare(plan, x, chunks, scale)
    if plan.segments == 1:
        walk(plan, x, chunks, initial, final, out)
        return out, final, saved
    ends = _new_states(plan, x, plan.segments)
    walk(plan, x, chunks, segment_states(plan, x, chunks, initial), ends, out)
    final.copy_(ends[:, -1].view_as(final))
    return out, final, saved


def _copied(source: Tensor | None, target: Tensor) -> Tensor:
    """Return `target` with the values of `source`, or zeros."""
    return target.zero_() if source is None else target.copy_(source)


def _chunk_buffers(plan: DeltaPlan, x: DeltaOperands) -> dict[str, Tensor]:
    """Return what a walk reads, empty."""
    shapes = dict(zip(SavedChunks._fields, plan.saved_shapes(), strict=True))
    read = ("gates", "inverse", "factors", "pairs")
    return {name: x.q.new_empty(shapes[name][0], dtype=shapes[name][1]) for name in read}


def _new_states(plan: DeltaPlan, x: DeltaOperands, segments: int) -> Tensor:
    return x.q.new_empty(plan.rows, segments, plan.key_dim, plan.value_dim, dtype=torch.float32)


def prepare(plan: DeltaPlan, x: DeltaOperands, saved: SavedChunks, scale: float) -> None:
    """Compute gates, M and P of all chunks."""
    system = x.q.new_empty(plan.rows, plan.chunks, SYSTEM_SIZE, dtype=torch.float32)
    compute_pairs(plan, x, saved, system, scale)
    invert(plan, saved, system)


def compute_pairs(plan: DeltaPlan, x: DeltaOperands, saved: SavedChunks, system: Tensor, scale: float) -> None:
    """Compute gates, N and P of all chunks."""
    strides = strides_of(*x[:3], None, None, None, None, x.decay, x.beta)
    tensors = x.q, x.k, x.decay, x.beta, x.starts, saved.gates, system, saved.factors, saved.pairs
    constants = constants_of(plan, plan.configs.pairs)
    PAIRS((plan.chunks * plan.rows, 1, 1), tensors, (strides, plan.sizes, scale), constants)


def invert(plan: DeltaPlan, saved: SavedChunks, system: Tensor) -> None:
    """Compute M of all chunks; `system` is overwritten."""
    constants = constants_of(plan, plan.configs.inverse)
    INVERSE((plan.chunks * plan.rows, 1, 1), (saved.gates, system, saved.inverse), (plan.sizes,), constants)


def segment_states(plan: DeltaPlan, x: DeltaOperands, saved: SavedChunks, initial: Tensor | None) -> Tensor:
    """Return the state before each segment: each is walked from 0, and from the identity without values."""
    local, states = _new_states(plan, x, plan.segments), _new_states(plan, x, plan.segments)
    walk(plan, x, saved, None, local)
    square = replace(plan, value_dim=plan.key_dim)
    transitions = _new_states(square, x, plan.segments)
    walk(square, x, saved, None, transitions, has_values=False)
    constants = constants_of(plan, JOIN_CONFIG, has_state=initial is not None)
    grid = plan.rows, value_tiles(plan, JOIN_CONFIG), 1
    JOIN(grid, (transitions, local, initial, states), (plan.segments,), constants)
    return states


def walk(
    plan: DeltaPlan,
    x: DeltaOperands,
    saved: SavedChunks,
    initial: Tensor | None,
    final: Tensor,
    out: Tensor | None = None,
    *,
    has_values: bool = True,
) -> None:
    """Compute the last state of each segment and, with `out`, the outputs and what the backward reads.

    Without values, each segment starts from the identity.
    """
    config = plan.configs.walk
    strides = strides_of(*x[:3], out, None, None, None, None, None)
    kept = (None, None) if out is None or not saved.states.numel() else saved[2:4]
    inputs = x.q if out is not None else None, x.k, x.v if has_values else None
    tensors = *inputs, *saved[:2], initial, final, out, *kept, *saved[4:]
    constants = constants_of(plan, config, has_state=initial is not None)
    grid = plan.rows, value_tiles(plan, config), plan.segments
    WALK(grid, tensors, (strides, plan.sizes), constants)


class DeltaGradients(NamedTuple):
    """Gradients; those of k and v have one row per state, since states may share a key head."""

    d_q: Tensor
    d_k: Tensor
    d_v: Tensor
    d_decay: Tensor | None
    d_beta: Tensor | None
    d_initial: Tensor


def gradient_buffers(plan: DeltaPlan, x: DeltaOperands) -> DeltaGradients:
    """Return empty gradients."""
    shared = plan.key_heads != plan.heads
    tokens, dtype = (plan.batch, plan.heads, plan.length), torch.float32 if shared else x.k.dtype
    return DeltaGradients(
        empty_like_rows(x.q),
        x.k.new_empty(*tokens, plan.key_dim, dtype=dtype),
        x.v.new_empty(*tokens, plan.value_dim, dtype=plan.dot_dtype),
        x.q.new_empty(tokens, dtype=torch.float32) if plan.has_decay else None,
        x.q.new_empty(tokens, dtype=torch.float32) if plan.has_beta else None,
        x.q.new_empty(plan.batch, plan.heads, plan.key_dim, plan.value_dim, dtype=torch.float32),
    )


def backward_passes(
    plan: DeltaPlan, x: DeltaOperands, saved: SavedChunks, d_out: Tensor, d_final: Tensor | None, scale: float
) -> DeltaGradients:
    """Return the gradients."""
    found = gradient_buffers(plan, x)
    if not plan.rows or not plan.chunks:
        _copied(d_final, found.d_initial)
        return found
    d_states = torch.empty_like(saved.states)
    walk_back(plan, x, saved, (d_out, d_final, d_states), found)
    compute_gradients(plan, x, saved, (d_out, d_states), found, scale)
    return found


def walk_back(
    plan: DeltaPlan,
    x: DeltaOperands,
    saved: SavedChunks,
    gradients: tuple[Tensor, Tensor | None, Tensor],
    found: DeltaGradients,
) -> None:
    """Compute the gradients of all states and of v."""
    d_out, d_final, d_states = gradients
    strides, config = strides_of(*x[:3], d_out, *found[:3], x.decay, x.beta), plan.configs.walk_back
    chunk = saved.gates, saved.inverse, saved.factors, saved.pairs
    tensors = x.q, x.k, d_out, *chunk, d_final, d_states, found.d_v, found.d_initial
    constants = constants_of(plan, config, has_state=d_final is not None)
    WALK_BACK((plan.rows, value_tiles(plan, config), 1), tensors, (strides, plan.sizes), constants)


def compute_gradients(
    plan: DeltaPlan,
    x: DeltaOperands,
    saved: SavedChunks,
    gradients: tuple[Tensor, Tensor],
    found: DeltaGradients,
    scale: float,
) -> None:
    """Compute the gradients of q, k, decay and beta."""
    d_out, d_states = gradients
    strides, config = strides_of(*x[:3], d_out, *found[:3], x.decay, x.beta), plan.configs.grad
    chunk = saved.gates, saved.factors, saved.pairs, saved.states, d_states, saved.updates
    tensors = x.q, x.k, d_out, *chunk, found.d_v, x.starts, found.d_q, found.d_k, found.d_decay, found.d_beta
    grid = plan.chunks * plan.rows, 1, 1
    GRAD(grid, tensors, (strides, plan.sizes, scale), constants_of(plan, config))
