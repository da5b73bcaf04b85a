"""Buffers and launches of a gate, a decay rate per token: its factors before the passes, its gradient after them."""

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qkv.attention.triton.kernels import gate as kernels
from qkv.attention.triton.kernels.common import Strides
from qkv.attention.triton.launch_cache import CachedKernel, Constants
from qkv.attention.triton.plan import Plan, ceil_div, next_power_of_two

if TYPE_CHECKING:
    from qkv.attention.triton.launch import StatePrefix, StateTensors

GATE_SUMS = CachedKernel(kernels.gate_sums, kernels.SumPointers, Strides, kernels.SumSizes)
GATE_GRADIENT = CachedKernel(kernels.gate_gradient, kernels.GradientPointers, Strides, kernels.GradientSizes, float)
ROWS = 4
"""Rows whose segments are summed by one program, one per warp."""


@dataclass(frozen=True)
class GateSums:
    """Numbers of a gate, one row per batch element and key head."""

    values: Tensor
    """Sums and factors of each token, padded to whole segments: (rows, 3, tokens), flat; the forward's fades follow."""
    fades: Tensor
    """Factor of the state before the split at each segment, which a state's accumulation fills: (rows, segments)."""


def is_gate(decay: Tensor | None) -> bool:
    """Return whether these are rates per token, (batch, heads, keys)."""
    return decay is not None and decay.dim() > 1


def gate_numbers(plan: Plan, decay: Tensor) -> int:
    """Return how many numbers the forward computes from a gate."""
    batch, heads, length = decay.shape
    return batch * heads * max(ceil_div(length, plan.segment), 1) * (3 * plan.segment + 1)


def gate_dtype(plan: Plan) -> torch.dtype:
    """Return the type of these numbers."""
    return torch.float64 if plan.dot_dtype == torch.float32 else torch.float32


def sum_gate(plan: Plan, decay: Tensor | None) -> GateSums | None:
    """Compute the numbers of a gate; None for a decay per head."""
    if decay is None or not is_gate(decay):
        return None
    gate = _split(plan, decay, decay.new_empty(gate_numbers(plan, decay), dtype=gate_dtype(plan)))
    rows, segments = gate.fades.shape
    if rows:
        GATE_SUMS(
            (segments * ceil_div(rows, ROWS), 1, 1), (decay, gate.values),
            (decay.stride(), (decay.shape[2], rows, decay.shape[1])), _sum_constants(plan),
        )  # fmt: skip
    return gate


def saved_gate(plan: Plan, decay: Tensor | None, values: Tensor) -> tuple[GateSums | None, GateSums | None]:
    """Return the numbers that the forward saved, and those of the backward, whose fades are empty."""
    if decay is None or not is_gate(decay):
        return None, None
    gate = _split(plan, decay, values)
    return gate, GateSums(values, torch.empty_like(gate.fades))


def _split(plan: Plan, decay: Tensor, values: Tensor) -> GateSums:
    batch, heads, length = decay.shape
    rows, segments = batch * heads, max(ceil_div(length, plan.segment), 1)
    return GateSums(values, values[3 * rows * segments * plan.segment :].view(rows, segments))


@lru_cache(maxsize=1024)
def _sum_constants(plan: Plan) -> Constants:
    return Constants(_segment_sizes(plan), {"num_warps": ROWS})


def _segment_sizes(plan: Plan) -> dict[str, int]:
    return {"SEGMENT": plan.segment, "BLOCK": next_power_of_two(plan.segment), "ROWS": ROWS}


@dataclass(frozen=True)
class GatePairs:
    """Sums of weights times their gradients over the other tokens of each token: (batch, heads, length)."""

    queries: Tensor
    keys: Tensor


@dataclass(frozen=True)
class Crossing:
    """Sums of weights times their gradients over the pairs that cross the end of a segment, through the state there."""

    forward: "StatePrefix"
    """States of the forward."""
    fades: Tensor
    """`GateSums.fades` of the forward."""
    sums: Tensor
    """(rows, segments, blocks of value columns)"""


def crossing_of(plan: Plan, gate: GateSums | None, forward: "StatePrefix | None") -> Crossing | None:
    """Return an empty `Crossing`; None without a gate or a state."""
    if gate is None or forward is None:
        return None
    sums = gate.fades.new_empty(*gate.fades.shape, plan.value_blocks, dtype=torch.float32)
    return Crossing(forward, gate.fades, sums)


def first_crossing(forward: "StatePrefix", last: "StateTensors") -> Tensor | None:
    """Return the sums over the pairs with tokens before the first one, by the initial state: (rows,)."""
    if not forward.before_splits:
        return None
    slot = forward.slots - forward.partition.num_splits
    kv_sum, k_sum = forward.state.kv_sum[:, slot].float(), forward.state.k_sum[:, slot]
    return (kv_sum * last.kv_sum).sum((1, 2)) + (k_sum * last.k_sum).sum(1)


def gate_gradient(
    plan: Plan, decay: Tensor, pairs: GatePairs, crossing: Crossing | None, initial: "StateTensors | None"
) -> Tensor:
    """Return the gradients of the rates; `initial` is that of the state before the first token, if there may be one."""
    batch, key_heads, length = decay.shape
    rows, heads = batch * key_heads, pairs.queries.shape[1]
    out = decay.new_empty(decay.shape, dtype=torch.float32)
    first = None if crossing is None or initial is None else first_crossing(crossing.forward, initial)
    if out.numel():
        GATE_GRADIENT(
            (ceil_div(length, plan.segment) * ceil_div(rows, ROWS), 1, 1),
            (decay, pairs.queries, pairs.keys, None if crossing is None else crossing.sums, first, out),
            (decay.stride(), (length, heads, key_heads, rows), plan.result_scale),
            _gradient_constants(plan, crossing is not None, first is not None),
        )  # fmt: skip
    return out


@lru_cache(maxsize=1024)
def _gradient_constants(plan: Plan, has_state: bool, has_first: bool) -> Constants:
    values = {"HAS_STATE": has_state, "HAS_FIRST": has_first, "PARTS": plan.value_blocks, **_segment_sizes(plan)}
    return Constants(values, {"num_warps": ROWS})
