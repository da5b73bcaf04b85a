"""The delta rule on a GPU as torch operators: torch.compile sees one call, autograd its gradient."""

from typing import Any

import torch
from torch import Tensor

from qkv.attention.triton.custom_op import define, register_backward
from qkv.attention.triton.delta_launch import (
    DeltaGradients,
    SavedChunks,
    backward_passes,
    forward_passes,
    gradient_buffers,
)
from qkv.attention.triton.delta_plan import DeltaOperands, DeltaPlan, plan_of_operands
from qkv.attention.triton.launch import with_contiguous_rows
from qkv.cost.aten import FORMULAS

DeltaResults = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
SixTensors = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def _forward(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None, beta: Tensor | None, starts: Tensor | None,
    initial: Tensor | None, heads: int, scale: float, needs_backward: bool,
) -> DeltaResults:  # fmt: skip
    """Return outputs, the last state, and `SavedChunks`; `heads` are the states per batch element.

    Unless `needs_backward`, what only the backward reads is empty.
    """
    x = DeltaOperands(q, k, v, decay, beta, starts).contiguous_rows()
    plan = plan_of_operands(x, heads)
    with torch.cuda.device_of(q):
        first = None if initial is None else initial.contiguous()
        out, final, saved = forward_passes(plan, x, first, scale, needs_backward)
    return out, final, *saved


def _forward_fake(q, k, v, decay, beta, starts, initial, heads, scale, needs_backward):
    plan = plan_of_operands(DeltaOperands(q, k, v, decay, beta, starts), heads)
    final = q.new_empty(plan.batch, plan.heads, plan.key_dim, plan.value_dim, dtype=torch.float32)
    saved = (q.new_empty(shape, dtype=dtype) for shape, dtype in plan.saved_shapes(needs_backward))
    return q.new_empty(*q.shape[:3], v.shape[3]), final, *saved


def _backward(
    g: Tensor, g_final: Tensor | None,
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None, beta: Tensor | None, starts: Tensor | None,
    gates: Tensor, inverse: Tensor, states: Tensor, updates: Tensor, factors: Tensor, pairs: Tensor,
    heads: int, scale: float,
) -> SixTensors:  # fmt: skip
    """Return the gradients of q, k, v, decay, beta and the initial state; empty ones of absent inputs."""
    x = DeltaOperands(q, k, v, decay, beta, starts).contiguous_rows()
    plan, saved = plan_of_operands(x, heads), SavedChunks(gates, inverse, states, updates, factors, pairs)
    g_final = None if g_final is None else g_final.contiguous()
    found = backward_passes(plan, x, saved, with_contiguous_rows(g), g_final, scale)
    return _rounded(plan, x, found)


def _rounded(plan: DeltaPlan, x: DeltaOperands, found: DeltaGradients) -> SixTensors:
    """Return gradients in the shapes and types of the inputs."""
    d_q, d_k, d_v, d_decay, d_beta, d_initial = found
    if plan.key_heads != plan.heads:
        sizes = plan.key_heads, plan.heads // plan.key_heads
        d_k, d_v = d_k.unflatten(1, sizes).sum(2), d_v.float().unflatten(1, sizes).sum(2)
    none = x.q.new_empty(0, dtype=torch.float32)
    d_decay = none if d_decay is None or x.decay is None else d_decay.to(x.decay.dtype)
    d_beta = none.clone() if d_beta is None or x.beta is None else d_beta.to(x.beta.dtype)
    return d_q, d_k.to(x.k.dtype), d_v.to(x.v.dtype), d_decay, d_beta, d_initial


def _backward_fake(
    g, g_final, q, k, v, decay, beta, starts, gates, inverse, states, updates, factors, pairs, heads, scale
):  # fmt: skip
    x = DeltaOperands(q, k, v, decay, beta, starts).contiguous_rows()
    plan = plan_of_operands(x, heads)
    return _rounded(plan, x, gradient_buffers(plan, x))


delta_attention = define("delta_attention", _forward, _forward_fake)
delta_attention_backward = define("delta_attention_backward", _backward, _backward_fake)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: DeltaResults) -> None:
    *tensors, initial, heads, scale, needs_backward = inputs
    if not needs_backward:
        raise ValueError("needs_backward=False, but an input requires a gradient")
    ctx.options, ctx.has_initial = (heads, scale), initial is not None
    ctx.save_for_backward(*tensors, *output[2:])
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, g: Tensor | None, g_final: Tensor | None, *_: Any) -> Any:
    saved = ctx.saved_tensors
    q, _, v, decay, beta, _ = saved[:6]
    if g is None:
        g = q.new_zeros(*q.shape[:3], v.shape[3])
    d_q, d_k, d_v, d_decay, d_beta, d_initial = delta_attention_backward(g, g_final, *saved, *ctx.options)
    return (
        d_q,
        d_k,
        d_v,
        None if decay is None else d_decay,
        None if beta is None else d_beta,
        None,
        d_initial if ctx.has_initial else None,
        *(None,) * 3,
    )


register_backward(delta_attention, _save_for_backward, _gradients)


def _plan_of_call(arguments: tuple[Any, ...], heads: int) -> DeltaPlan:
    return plan_of_operands(DeltaOperands(*arguments[:6]), heads)


def _forward_multiplications(arguments: tuple[Any, ...], _: Any) -> int:
    return sum(_plan_of_call(arguments, arguments[7]).forward_multiplications().values())


def _backward_multiplications(arguments: tuple[Any, ...], _: Any) -> int:
    return sum(_plan_of_call(arguments[2:], arguments[14]).backward_multiplications().values())


FORMULAS["qkv.delta_attention"] = _forward_multiplications
FORMULAS["qkv.delta_attention_backward"] = _backward_multiplications
