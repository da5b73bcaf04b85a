"""Feature-map attention on a GPU as torch operators: torch.compile sees one call, autograd its gradient."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from qkv.attention.triton.custom_op import define, register_backward
from qkv.attention.triton.gate import (
    GatePairs,
    crossing_of,
    gate_dtype,
    gate_gradient,
    gate_numbers,
    is_gate,
    saved_gate,
    sum_gate,
)
from qkv.attention.triton.kinds import kernel_kind
from qkv.attention.triton.launch import (
    NO_ORDER,
    PassOperands,
    StateInputs,
    StateOptions,
    StatePrefix,
    StateTensors,
    accumulate_state,
    compute_grad_qk,
    compute_output,
    empty_like_rows,
    with_contiguous_rows,
)
from qkv.attention.triton.plan import Plan, plan_of
from qkv.cost.aten import FORMULAS

Results = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def _forward(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, decay: Tensor | None,
    initial_kv: Tensor | None, initial_k: Tensor | None,
    kernel: str, scale: float, causal: bool, segment: int, with_state: bool,
) -> Results:  # fmt: skip
    """Return outputs, inverse normalizers, prefix states, the final state if `with_state`, and the gate's numbers.

    An empty tensor for each that is absent.

    `with_state`: a state comes in or is requested, so it is computed for a short sequence too.
    `decay` has a rate per head, or one per token and key head: a gate, in which hidden tokens have rate 0.
    """
    plan = _plan(q, k, v, kernel, scale, causal, segment, with_state)
    q, k, v = with_contiguous_rows(q), with_contiguous_rows(k), with_contiguous_rows(v)
    mask = None if mask is None else mask.contiguous()
    out = q.new_empty(*q.shape[:3], v.shape[3])
    with torch.cuda.device_of(q):  # a kernel starts on the current device; in the backward autograd has chosen it
        rate, gate = _per_head(decay), sum_gate(plan, decay)
        operands = PassOperands(q, k, v, scale, 1.0, mask, rate, gate)
        values = q.new_empty(0) if gate is None else gate.values
        if not plan.has_state:
            return out, compute_output(plan, operands, None, out), *_empty_pair(q), *_empty_pair(q), values
        initial = _pad_state(plan, initial_kv, initial_k, 1.0)
        prefix, final, _ = accumulate_state(plan, StateInputs(k, v, 1.0), StateOptions(mask, rate, gate, initial))
        prefix = prefix if plan.causal else _final_as_prefix(plan, final)
        inv_norm = compute_output(plan, operands, prefix, out)
    last = _unpad_state(plan, final, q.shape[0], 1.0) if with_state else _empty_pair(q)
    return out, inv_norm, prefix.state.kv_sum, prefix.state.k_sum, *last, values


def _backward(
    g: Tensor, g_kv: Tensor | None, g_k: Tensor | None,
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, decay: Tensor | None,
    out: Tensor, inv_norm: Tensor, prefix_kv: Tensor, prefix_k: Tensor, gate_values: Tensor,
    kernel: str, scale: float, causal: bool, segment: int, with_state: bool,
) -> Gradients:  # fmt: skip
    """Return the gradients of q, k, v, decay and the initial state; an empty tensor for each that is absent."""
    plan = _plan(q, k, v, kernel, scale, causal, segment, with_state)
    q, k, v, g = (with_contiguous_rows(x) for x in (q, k, v, g))
    mask = None if mask is None else mask.contiguous()
    inv, d_norm = (inv_norm, torch.empty_like(inv_norm)) if plan.kernel.normalizes else (None, None)
    prefix = suffix = last = d_decay_between = None
    d_initial = _empty_pair(q)
    if plan.has_state:
        prefix = _saved_prefix(plan, StateTensors(prefix_kv, prefix_k), q.shape[0], decay)
    rate, (gate, after) = _per_head(decay), saved_gate(plan, decay, gate_values)
    queries = PassOperands(q, k, v, scale, 1.0, mask, rate, gate, inv, d_norm)
    keys = PassOperands(k, q, g, 1.0, scale, mask, rate, after, inv, d_norm, reverse=True)
    dq, dk, dv = empty_like_rows(q), empty_like_rows(k), empty_like_rows(v)
    d_decay_q = compute_grad_qk(plan, queries, g, out, prefix, dq)
    if prefix is not None:
        initial = _pad_state(plan, g_kv, g_k, scale)
        forward_prefix = prefix.state if plan.causal else None
        inputs = StateInputs(q, g, scale, inv, d_norm, reverse=True)
        suffix, last, d_decay_between = accumulate_state(
            plan, inputs, StateOptions(None, rate, after, initial, forward_prefix)
        )
        suffix = suffix if plan.causal else _final_as_prefix(plan, last)
        d_initial = _unpad_state(plan, last, q.shape[0], scale) if with_state else d_initial
    d_decay_k = compute_grad_qk(plan, keys, v, out, suffix, dk)
    crossing = crossing_of(plan, gate, prefix)
    compute_output(plan, keys, suffix, dv, crossing)
    if gate is None:
        d_decay = _sum_d_decay(decay, d_decay_q, d_decay_k, d_decay_between)
    else:
        d_decay = _gate_gradient(plan, decay, (d_decay_q, d_decay_k), crossing, last if with_state else None)
    return dq, dk, dv, d_decay, *d_initial


def _plan(
    q: Tensor, k: Tensor, v: Tensor, kernel: str, scale: float, causal: bool, segment: int, with_state: bool,
    make: Callable[..., Plan] = plan_of,
) -> Plan:  # fmt: skip
    sizes = k.shape[2], k.shape[1], q.shape[3], v.shape[3]
    return make(kernel_kind(kernel), causal, scale, segment, *sizes, q.dtype, with_state or k.shape[2] > segment)


def _empty_pair(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(0, dtype=torch.float32), x.new_empty(0, dtype=torch.float32)


def _pad_state(plan: Plan, kv_sum: Tensor | None, k_sum: Tensor | None, scale: float) -> StateTensors | None:
    """Convert a state to the layout of the kernels.

    Features are in kernel order, not multiplied by the token weights, and padded to whole tiles. Batch and key heads
    are one axis.
    """
    if kv_sum is None:
        return None
    more_features = plan.padded_features - plan.features
    more_columns = plan.padded_values - plan.value_dim
    weights, order = plan.token_weights(scale, kv_sum.device), plan.feature_order(kv_sum.device)

    def reorder(x: Tensor) -> Tensor:
        return (x if order is None else x.index_select(2, order)).flatten(0, 1) / weights

    padded = functional.pad(reorder(kv_sum), (0, more_columns, 0, more_features)).contiguous()
    if k_sum is None:
        return StateTensors(padded, padded.new_empty(padded.shape[0], 0))
    return StateTensors(padded, functional.pad(reorder(k_sum).squeeze(-1), (0, more_features)).contiguous())


def _unpad_state(plan: Plan, state: StateTensors, batch: int, scale: float) -> tuple[Tensor, Tensor]:
    """Invert `_pad_state`: return (batch, key_heads, features, value_dim) and (batch, key_heads, features, 1)."""
    weights, order = plan.token_weights(scale, state.kv_sum.device), plan.feature_order(state.kv_sum.device)

    def restore_order(x: Tensor) -> Tensor:
        weighted = x * weights  # a new tensor: the results of an operator may not share memory
        found = weighted if order is None else torch.empty_like(weighted).index_copy_(1, order, weighted)
        return found.unflatten(0, (batch, plan.key_heads))

    kv_sum = restore_order(state.kv_sum[:, : plan.features, : plan.value_dim])
    if not plan.kernel.normalizes:
        return kv_sum, kv_sum.new_empty(0)
    return kv_sum, restore_order(state.k_sum[:, : plan.features, None])


def _saved_prefix(plan: Plan, state: StateTensors, batch: int, decay: Tensor | None) -> StatePrefix:
    """Return the prefix that the forward read, with the state that it saved."""
    if not plan.causal:
        return StatePrefix(state, NO_ORDER)
    has_decay = _per_head(decay) is not None
    return StatePrefix(state, plan.partition(plan.keys, batch * plan.key_heads, has_decay=has_decay))


def _final_as_prefix(plan: Plan, final: StateTensors) -> StatePrefix:
    """Return the final state as the prefix that every query reads without causal order."""
    weights = plan.state_weights(final.kv_sum.device)
    kv_sum, k_sum = final.kv_sum, final.k_sum
    if weights is not None:
        kv_sum, k_sum = kv_sum * weights[:, None], k_sum * weights
    return StatePrefix(StateTensors(kv_sum.to(plan.dot_dtype).unsqueeze(1), k_sum.unsqueeze(1)), NO_ORDER)


def _per_head(decay: Tensor | None) -> Tensor | None:
    """Return the rates per head; None for a gate."""
    return None if is_gate(decay) else decay


def _gate_gradient(plan: Plan, decay: Any, pairs: Any, crossing: Any, initial: Any) -> Tensor:
    return gate_gradient(plan, decay, GatePairs(*pairs), crossing, initial)


def _sum_d_decay(
    decay: Tensor | None, queries: Tensor | None, keys: Tensor | None, between_segments: Tensor | None
) -> Tensor:
    if decay is None or queries is None or keys is None:
        return torch.empty(0)
    total = queries.sum((0, 2)) + keys.sum((0, 2))
    if between_segments is not None:
        total = total + between_segments.view(-1, decay.shape[0]).sum(0)
    return -total.to(decay.dtype)


def _forward_fake(q, k, v, mask, decay, initial_kv, initial_k, kernel, scale, causal, segment, with_state):
    plan = _plan(q, k, v, kernel, scale, causal, segment, with_state, Plan)
    out = q.new_empty(*q.shape[:3], v.shape[3])
    normalizes = plan.kernel.normalizes
    inv_norm = q.new_empty(*q.shape[:2], q.shape[2] if normalizes else 0, dtype=torch.float32)
    values = q.new_empty(0)
    if is_gate(decay):
        values = q.new_empty(gate_numbers(plan, decay), dtype=gate_dtype(plan))
    if not plan.has_state:
        return out, inv_norm, *_empty_pair(q), *_empty_pair(q), values
    batch, rows = q.shape[0], q.shape[0] * plan.key_heads
    slots = 1
    if causal:
        partition = plan.partition(k.shape[2], rows, has_decay=_per_head(decay) is not None)
        slots = partition.prefix_slots(has_initial=initial_kv is not None)
    kv_sum = q.new_empty(rows, slots, plan.padded_features, plan.padded_values, dtype=plan.dot_dtype)
    k_sum = q.new_empty(rows, slots, plan.padded_features if normalizes else 0, dtype=torch.float32)
    if not with_state:
        return out, inv_norm, kv_sum, k_sum, *_empty_pair(q), values
    return out, inv_norm, kv_sum, k_sum, *_fake_state(plan, q, batch), values


def _backward_fake(
    g, g_kv, g_k, q, k, v, mask, decay, out, inv_norm, prefix_kv, prefix_k, gate_values,
    kernel, scale, causal, segment, with_state,
):  # fmt: skip
    plan = _plan(q, k, v, kernel, scale, causal, segment, with_state, Plan)
    d_initial = _fake_state(plan, q, q.shape[0]) if with_state else _empty_pair(q)
    d_decay = torch.empty(0) if decay is None else decay.new_empty(decay.shape)
    dq, dk, dv = (empty_like_rows(with_contiguous_rows(x)) for x in (q, k, v))
    return dq, dk, dv, d_decay, *d_initial


def _fake_state(plan, q, batch):
    shape = batch, plan.key_heads, plan.features
    kv_sum = q.new_empty(*shape, plan.value_dim, dtype=torch.float32)
    return kv_sum, q.new_empty((*shape, 1) if plan.kernel.normalizes else 0, dtype=torch.float32)


feature_map_attention = define("feature_map_attention", _forward, _forward_fake)
feature_map_attention_backward = define("feature_map_attention_backward", _backward, _backward_fake)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
    q, k, v, mask, decay, initial_kv, initial_k, *ctx.options = inputs
    out, inv_norm, prefix_kv, prefix_k, _, _, gate_values = output
    ctx.has_initial_kv, ctx.has_initial_k = initial_kv is not None, initial_k is not None
    ctx.save_for_backward(q, k, v, mask, decay, out, inv_norm, prefix_kv, prefix_k, gate_values)
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, g: Tensor | None, _: Any, __: Any, ___: Any, g_kv: Any, g_k: Any, ____: Any) -> Any:
    q, k, v, mask, decay, out, inv_norm, prefix_kv, prefix_k, gate_values = ctx.saved_tensors
    if g is None:
        g = torch.zeros_like(out)
    if not kernel_kind(ctx.options[0]).normalizes:
        g_k = None
    elif g_k is None and g_kv is not None:
        g_k = g_kv.new_zeros(*g_kv.shape[:3], 1)
    if g_kv is None and g_k is not None:
        g_kv = g_k.new_zeros(*g_k.shape[:3], v.shape[3])
    dq, dk, dv, d_decay, d_kv, d_k = feature_map_attention_backward(
        g, g_kv, g_k, q, k, v, mask, decay, out, inv_norm, prefix_kv, prefix_k, gate_values, *ctx.options
    )
    return (
        dq,
        dk,
        dv,
        None,
        None if decay is None else d_decay,
        d_kv if ctx.has_initial_kv else None,
        d_k if ctx.has_initial_k else None,
        *(None,) * len(ctx.options),
    )


register_backward(feature_map_attention, _save_for_backward, _gradients)


def _plan_of_call(q: Tensor, k: Tensor, v: Tensor, arguments: tuple[Any, ...]) -> Plan:
    kernel, scale, causal, segment, with_state = arguments[-5:]
    return _plan(q, k, v, kernel, scale, causal, segment, with_state, Plan)


def _forward_multiplications(arguments: tuple[Any, ...], _: Any) -> int:
    q, k, v = arguments[:3]
    plan = _plan_of_call(q, k, v, arguments)
    return sum(plan.forward_multiplications(*q.shape[:3], gated=is_gate(arguments[4])).values())


def _backward_multiplications(arguments: tuple[Any, ...], _: Any) -> int:
    q, k, v, _, decay = arguments[3:8]
    plan = _plan_of_call(q, k, v, arguments)
    ways = {"has_decay": _per_head(decay) is not None, "gated": is_gate(decay)}
    return sum(plan.backward_multiplications(*q.shape[:3], **ways).values())


FORMULAS["qkv.feature_map_attention"] = _forward_multiplications
FORMULAS["qkv.feature_map_attention_backward"] = _backward_multiplications
