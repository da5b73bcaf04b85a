"""The torch operator of one decoding step: it takes one new token per sequence and updates the state in place."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from qkv.attention.triton.gate import is_gate
from qkv.attention.triton.kernels import decode_step as kernels
from qkv.attention.triton.kernels.common import HeadStrides
from qkv.attention.triton.kinds import kernel_kind
from qkv.attention.triton.launch import with_contiguous_rows
from qkv.attention.triton.launch_cache import CachedKernel, Constants
from qkv.attention.triton.plan import MIN_TILE, Plan, ceil_div, next_power_of_two, plan_of
from qkv.cost.aten import FORMULAS

DECODE_STEP = CachedKernel(kernels.decode_step, kernels.DecodePointers, kernels.DecodeStrides, int, float)
COMBINE_PARTS = CachedKernel(kernels.combine_parts, kernels.CombinePointers, HeadStrides, int)
ELEMENTS_PER_PART = 16384
"""Elements of a state that one program takes: fixed, so that any batch on any GPU gives the same bits."""
ELEMENTS_PER_TILE = 4096


@dataclass(frozen=True)
class StateParts:
    """Division of a state among programs, and the compile-time arguments of these."""

    parts: int
    decode_step: Constants
    combine_parts: Constants
    partial_shape: tuple[int, int]
    """Query heads and value columns of a partial output, in whole tiles."""


@lru_cache(maxsize=64)
def _state_parts(plan: Plan, group: int, has_mask: bool, has_decay: bool, has_gate: bool) -> StateParts:
    block_v = next_power_of_two(plan.value_dim)
    features_per_part = max(MIN_TILE, ELEMENTS_PER_PART // block_v)
    parts = ceil_div(plan.features, features_per_part)
    shared = {
        "GROUP": group, "BLOCK_G": next_power_of_two(group), "PARTS": parts, "VALUE_DIM": plan.value_dim,
        "BLOCK_V": block_v, "NORMALIZE": plan.kernel.normalizes,
    }  # fmt: skip
    own = {
        "KIND": plan.kernel.functions, "FEATURES": plan.features,
        "BLOCK_F": min(features_per_part, max(MIN_TILE, ELEMENTS_PER_TILE // block_v)),
        "FEATURES_PER_PART": features_per_part, "HAS_MASK": has_mask, "HAS_DECAY": has_decay,
        "HAS_GATE": has_gate,
    }  # fmt: skip
    options: dict[str, int | None] = {"num_warps": 2}
    partial_shape = next_power_of_two(group), block_v
    return StateParts(parts, Constants({**shared, **own}, options), Constants(shared, options), partial_shape)


@lru_cache(maxsize=64)
def _tables(plan: Plan, scale: float, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return the tables of `token_features`; without an expansion, the index of each element."""
    if plan.kernel.expansion is not None:
        return plan.kernel.expansion.decode_tables(plan.key_dim, scale, device)
    elements = torch.arange(plan.key_dim, device=device, dtype=torch.int32)
    return elements, elements, elements


def _head_strides(x: Tensor) -> tuple[int, ...]:
    return x.stride()[:2]


@torch.library.custom_op("qkv::feature_map_step", mutates_args=("kv_sum", "k_sum"))
def feature_map_step(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, decay: Tensor | None, kv_sum: Tensor, k_sum: Tensor | None,
    kernel: str, scale: float,
) -> Tensor:  # fmt: skip
    """Return the outputs of one new token per sequence; add it to `kv_sum` and `k_sum` in place."""
    if not (kv_sum.is_contiguous() and (k_sum is None or k_sum.is_contiguous())):
        raise ValueError("kv_sum and k_sum are updated in place, and must be contiguous")
    q, k, v = with_contiguous_rows(q), with_contiguous_rows(k), with_contiguous_rows(v)
    mask = None if mask is None else mask.contiguous()
    batch, heads, _, key_dim = q.shape
    key_heads, value_dim = v.shape[1], v.shape[3]
    plan = plan_of(kernel_kind(kernel), True, scale, MIN_TILE, 1, key_heads, key_dim, value_dim, q.dtype, True)
    out = q.new_empty(batch, heads, 1, value_dim)
    first, second, q_terms = _tables(plan, scale, q.device)
    k_terms = _tables(plan, 1.0, q.device)[2]
    rows, gated = batch * key_heads, is_gate(decay)
    decay = None if decay is None else decay.contiguous()
    flags = mask is not None, decay is not None and not gated, gated
    parts = _state_parts(plan, heads // key_heads, *flags)
    partial_out = partial_norm = None
    if parts.parts > 1:
        partial_out = q.new_empty(rows, parts.parts, *parts.partial_shape, dtype=torch.float32)
        partial_norm = q.new_empty(rows, parts.parts, parts.partial_shape[0], dtype=torch.float32)
    if out.numel():
        strides = _head_strides(q), _head_strides(k), _head_strides(v), _head_strides(out)
        with torch.cuda.device_of(q):
            DECODE_STEP(
                (rows, parts.parts, 1),
                (q, k, v, first, second, q_terms, k_terms, mask, decay, kv_sum, k_sum, out, partial_out, partial_norm),
                (strides, key_heads, scale),
                parts.decode_step,
            )
            if parts.parts > 1:
                combined = (partial_out, partial_norm, out)
                COMBINE_PARTS((rows, 1, 1), combined, (strides[3], key_heads), parts.combine_parts)
    return out


@feature_map_step.register_fake
def _feature_map_step_fake(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Tensor:
    return q.new_empty(*q.shape[:3], v.shape[3])


def _step_multiplications(arguments: tuple[Any, ...], _: Any) -> int:
    """Return the multiplications: each element of the state is updated once, and read for every query of its group."""
    q, kv_sum = arguments[0], arguments[5]
    return kv_sum.numel() * (1 + q.shape[1] // kv_sum.shape[1])


FORMULAS["qkv.feature_map_step"] = _step_multiplications
