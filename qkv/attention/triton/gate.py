"""Buffers and launches of a gate, a decay rate per token: its sums before the passes, its gradient after them."""

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
GATE_BORDERS = CachedKernel(kernels.gate_borders, kernels.SumPointers, kernels.SumSizes)
GATE_GRADIENT = CachedKernel(kernels.gate_gradient, kernels.GradientPointers, Strides, kernels.GradientSizes, float)
BORDERS_PER_STEP = 256
"""Borders that are summed at a time."""
MAX_STATE_BLOCK = 1024
"""Elements of two states that are multiplied at a time."""


@dataclass(frozen=True)
class GateSums:
    """Sums of the rates, in powers of two: one row per batch element and key head."""

    sums: Tensor
    """From the first token of the segment: (rows, length)."""
    borders: Tensor
    """Before each segment, and of all: (rows, segments + 1), float64."""


def is_gate(decay: Tensor | None) -> bool:
    """Return whether these are rates per token, (batch, heads, keys)."""
    return decay is not None and decay.dim() > 1


def sum_gate(plan: Plan, decay: Tensor | None) -> GateSums | None:
    """Return the sums of a gate; None for a decay per head."""
    if decay is None or not is_gate(decay):
        return None
    batch, heads, length = decay.shape
    rows, segments = batch * heads, max(ceil_div(length, plan.segment), 1)
    sums = decay.new_empty(rows, length, dtype=torch.float64 if plan.dot_dtype == torch.float32 else torch.float32)
    borders = decay.new_empty(rows, segments + 1, dtype=torch.float64)
    if rows:
        tensors, sizes = (decay, sums, borders), (length, rows, heads)
        sum_constants, border_constants = _sum_constants(plan)
        GATE_SUMS((segments * rows, 1, 1), tensors, (decay.stride(), sizes), sum_constants)
        GATE_BORDERS((rows, 1, 1), tensors, (sizes,), border_constants)
    return GateSums(sums, borders)


@lru_cache(maxsize=1024)
def _sum_constants(plan: Plan) -> tuple[Constants, Constants]:
    options: dict[str, int | None] = {"num_warps": 1}
    sums = {"SEGMENT": plan.segment, "BLOCK": next_power_of_two(plan.segment)}
    return Constants(sums, options), Constants({"SEGMENT": plan.segment, "BLOCK": BORDERS_PER_STEP}, options)


@dataclass(frozen=True)
class GatePairs:
    """Sums of weights times their gradients over the other tokens of each token: (batch, heads, length)."""

    queries: Tensor
    keys: Tensor


def gate_gradient(
    plan: Plan,
    decay: Tensor,
    gate: GateSums,
    pairs: GatePairs,
    states: "tuple[StatePrefix, StatePrefix, StateTensors] | None",
) -> Tensor:
    """Return the gradients of the rates.

    `states` are those before each segment, their gradients, and the gradient of the state before the first token.
    """
    batch, key_heads, length = decay.shape
    rows, heads = batch * key_heads, pairs.queries.shape[1]
    out = decay.new_empty(decay.shape, dtype=torch.float32)
    kv_tensors: tuple[Tensor | None, ...] = (None, None, None)
    k_tensors = kv_tensors
    splits, slots, before = (1, 1), (0, 0), (False, False)
    if states is not None:
        prefix, suffix, first = states
        kv_tensors = prefix.state.kv_sum, suffix.state.kv_sum, first.kv_sum
        k_tensors = prefix.state.k_sum, suffix.state.k_sum, first.k_sum
        splits = prefix.partition.num_splits, prefix.partition.segments_per_split
        slots, before = (prefix.slots, suffix.slots), (prefix.before_splits, suffix.before_splits)
    if out.numel():
        sizes = (length, heads, key_heads, rows, plan.padded_features, plan.padded_values, *splits, *slots)
        GATE_GRADIENT(
            (ceil_div(length, plan.segment) * rows, 1, 1),
            (
                decay, gate.borders, pairs.queries, pairs.keys, *kv_tensors, *k_tensors,
                plan.state_weights(out.device), out,
            ),
            (decay.stride(), sizes, plan.result_scale),
            _gradient_constants(plan, states is not None, *before),
        )  # fmt: skip
    return out


@lru_cache(maxsize=1024)
def _gradient_constants(plan: Plan, has_state: bool, split_prefix: bool, split_suffix: bool) -> Constants:
    values = {
        "HAS_STATE": has_state, "NORMALIZE": plan.kernel.normalizes, "EXPANDS": plan.has_feature_expansion,
        "SPLIT_PREFIX": split_prefix, "SPLIT_SUFFIX": split_suffix, "SEGMENT": plan.segment,
        "BLOCK_T": next_power_of_two(plan.segment),
        "BLOCK": min(MAX_STATE_BLOCK, next_power_of_two(plan.padded_features * plan.padded_values)),
    }  # fmt: skip
    return Constants(values, {"num_warps": 4})
