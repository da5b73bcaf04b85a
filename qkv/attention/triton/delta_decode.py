"""The torch operator of one decoding step of the delta rule: it updates the state in place."""

from typing import Any

import torch
from torch import Tensor

from qkv.attention.triton.delta_launch import strides_of
from qkv.attention.triton.delta_plan import DeltaConfig, DeltaOperands, constants_of, plan_of_operands, value_tiles
from qkv.attention.triton.kernels.delta_common import DeltaSizes, DeltaStrides
from qkv.attention.triton.kernels.delta_step import DeltaStepPointers
from qkv.attention.triton.kernels.delta_step import delta_step as kernel
from qkv.attention.triton.launch_cache import CachedKernel
from qkv.cost.aten import FORMULAS

DELTA_STEP = CachedKernel(kernel, DeltaStepPointers, DeltaStrides, DeltaSizes, float)
CONFIG = DeltaConfig(32, 4, 1)
"""32 value columns per program: fixed, so that any batch on any GPU gives the same bits."""


@torch.library.custom_op("qkv::delta_step", mutates_args=("state",))
def delta_step(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None, beta: Tensor | None, starts: Tensor | None, state: Tensor,
    scale: float,
) -> Tensor:  # fmt: skip
    """Return the outputs of one new token per sequence, and write it to `state` (batch, heads, key_dim, value_dim)."""
    if not state.is_contiguous():
        raise ValueError("state is updated in place, and must be contiguous")
    x = DeltaOperands(q, k, v, decay, beta, starts).contiguous_rows()
    plan = plan_of_operands(x, state.shape[1])
    out = q.new_empty(*q.shape[:3], v.shape[3])
    if plan.rows:
        strides = strides_of(*x[:3], out, None, None, None, decay, beta)
        with torch.cuda.device_of(q):
            grid, tensors = (plan.rows, value_tiles(plan, CONFIG), 1), (*x, state, out)
            DELTA_STEP(grid, tensors, (strides, plan.sizes, scale), constants_of(plan, CONFIG))
    return out


@delta_step.register_fake
def _delta_step_fake(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Tensor:
    return q.new_empty(*q.shape[:3], v.shape[3])


def _step_multiplications(arguments: tuple[Any, ...], _: Any) -> int:
    """Return the multiplications: each element of the state predicts, is written, and is read by every query."""
    q, state = arguments[0], arguments[6]
    return int(state.numel() * (2 + q.shape[1] // state.shape[1]))


FORMULAS["qkv.delta_step"] = _step_multiplications
