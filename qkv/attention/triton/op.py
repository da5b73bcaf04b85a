"""Feature-map attention on a GPU as torch operators: torch.compile sees one call, autograd its gradient."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from qkv.attention.triton.custom_op import define, differentiate
from qkv.attention.triton.launch import (
    Memory,
    Prefix,
    Sides,
    Stream,
    Walk,
    pulling,
    reading,
    room_for,
    side_by_side,
    walked,
)
from qkv.attention.triton.plan import KINDS, Plan, Stretches, plan_of
from qkv.cost.aten import FORMULAS

Results = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def _attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, decay: Tensor | None,
    initial_sums: Tensor | None, initial_norms: Tensor | None,
    kind: str, scale: float, causal: bool, segment: int, keeps: bool,
) -> Results:  # fmt: skip
    """Outputs, inverse normalizers, what the queries read, and the sums after the last token, if it `keeps` them.

    `keeps`: the sums come in or are wanted, so they are made for a short sequence too.
    """
    plan = _plan(q, k, v, kind, scale, causal, segment, keeps)
    q, k, v = side_by_side(q), side_by_side(k), side_by_side(v)
    mask = None if mask is None else mask.contiguous()
    sides = Sides(q, k, v, scale, 1.0, mask, decay)
    out = q.new_empty(*q.shape[:3], v.shape[3])
    with torch.cuda.device_of(q):  # a kernel starts on the current device; in the backward autograd has chosen it
        if not plan.remembers:
            return out, reading(plan, sides, None, out), *_nothing(q), *_nothing(q)
        initial = _padded(plan, initial_sums, initial_norms, 1.0)
        prefix, final, _ = walked(plan, Stream(k, v, 1.0), Walk(mask, decay, initial))
        prefix = prefix if plan.causal else _for_all(plan, final)
        inverse = reading(plan, sides, prefix, out)
    last = _cut(plan, final, q.shape[0], 1.0) if keeps else _nothing(q)
    return out, inverse, prefix.memory.sums, prefix.memory.norms, *last


def _attend_backward(
    g: Tensor, g_sums: Tensor | None, g_norms: Tensor | None,
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, decay: Tensor | None,
    out: Tensor, inverse: Tensor, prefix_sums: Tensor, prefix_norms: Tensor,
    kind: str, scale: float, causal: bool, segment: int, keeps: bool,
) -> Results:  # fmt: skip
    """Gradients of q, k, v, decay and the initial sums; empty where there is none."""
    plan = _plan(q, k, v, kind, scale, causal, segment, keeps)
    q, k, v, g = side_by_side(q), side_by_side(k), side_by_side(v), side_by_side(g)
    mask = None if mask is None else mask.contiguous()
    share, extra = (inverse, torch.empty_like(inverse)) if plan.parts.normalizes else (None, None)
    prefix = suffix = lost = None
    first = _nothing(q)
    if plan.remembers:
        prefix = _kept(plan, Memory(prefix_sums, prefix_norms), q.shape[0], decay)
    asked = Sides(q, k, v, scale, 1.0, mask, decay, share, extra)
    answered = Sides(k, q, g, 1.0, scale, mask, decay, share, extra, reverse=True)
    dq, dk, dv = room_for(q), room_for(k), room_for(v)
    lost_by_queries = pulling(plan, asked, g, out, prefix, dq)
    if prefix is not None:
        final = _padded(plan, g_sums, g_norms, scale)
        against = prefix.memory if plan.causal else None
        stream = Stream(q, g, scale, share, extra, reverse=True)
        suffix, last, lost = walked(plan, stream, Walk(None, decay, final, against))
        suffix = suffix if plan.causal else _for_all(plan, last)
        first = _cut(plan, last, q.shape[0], scale) if keeps else first
    lost_by_keys = pulling(plan, answered, v, out, suffix, dk)
    reading(plan, answered, suffix, dv)
    return dq, dk, dv, _decay_gradient(decay, lost_by_queries, lost_by_keys, lost), *first


def _plan(
    q: Tensor, k: Tensor, v: Tensor, kind: str, scale: float, causal: bool, segment: int, keeps: bool,
    make: Callable[..., Plan] = plan_of,
) -> Plan:  # fmt: skip
    sizes = k.shape[2], k.shape[1], q.shape[3], v.shape[3]
    return make(kind, causal, scale, segment, *sizes, q.dtype, keeps or k.shape[2] > segment)


def _nothing(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(0, dtype=torch.float32), x.new_empty(0, dtype=torch.float32)


def _padded(plan: Plan, sums: Tensor | None, norms: Tensor | None, scale: float) -> Memory | None:
    """Sums as the kernels keep them: in their order, without weights, whole tiles, one row for each key head."""
    if sums is None:
        return None
    more = plan.width - plan.features
    columns = plan.value_size * plan.value_blocks - plan.value_dim
    weights, order = plan.side_weights(scale, sums.device), plan.order(sums.device)

    def kept(x: Tensor) -> Tensor:
        return (x if order is None else x.index_select(2, order)).flatten(0, 1) / weights

    whole = functional.pad(kept(sums), (0, columns, 0, more)).contiguous()
    if norms is None:
        return Memory(whole, whole.new_empty(whole.shape[0], 0))
    return Memory(whole, functional.pad(kept(norms).squeeze(-1), (0, more)).contiguous())


def _cut(plan: Plan, memory: Memory, batch: int, scale: float) -> tuple[Tensor, Tensor]:
    """The way back: (batch, key_heads, features, value_dim) and (batch, key_heads, features, 1)."""
    weights, order = plan.side_weights(scale, memory.sums.device), plan.order(memory.sums.device)

    def given(x: Tensor) -> Tensor:
        weighed = x * weights  # a new tensor: an operator's results may not share memory
        found = weighed if order is None else torch.empty_like(weighed).index_copy_(1, order, weighed)
        return found.unflatten(0, (batch, plan.key_heads))

    sums = given(memory.sums[:, : plan.features, : plan.value_dim])
    if not plan.parts.normalizes:
        return sums, sums.new_empty(0)
    return sums, given(memory.norms[:, : plan.features, None])


def _kept(plan: Plan, memory: Memory, batch: int, decay: Tensor | None) -> Prefix:
    """What the forward read, from what it kept."""
    if not plan.causal:
        return Prefix(memory, ALL)
    return Prefix(memory, plan.stretches(plan.keys, batch * plan.key_heads, decays=decay is not None))


ALL = Stretches(1, 1, False)
"""Of what has no order: one prefix for every query, whatever its segment."""


def _for_all(plan: Plan, final: Memory) -> Prefix:
    """What every query reads where there is no order."""
    weights = plan.memory_weights(final.sums.device)
    sums, norms = final.sums, final.norms
    if weights is not None:
        sums, norms = sums * weights[:, None], norms * weights
    return Prefix(Memory(sums.to(plan.type).unsqueeze(1), norms.unsqueeze(1)), ALL)


def _decay_gradient(
    decay: Tensor | None, queries: Tensor | None, keys: Tensor | None, between: Tensor | None
) -> Tensor:
    if decay is None or queries is None or keys is None:
        return torch.empty(0)
    total = queries.sum((0, 2)) + keys.sum((0, 2))
    if between is not None:
        total = total + between.view(-1, decay.shape[0]).sum(0)
    return -total.to(decay.dtype)


def _attend_fake(q, k, v, mask, decay, initial_sums, initial_norms, kind, scale, causal, segment, keeps):
    plan = _plan(q, k, v, kind, scale, causal, segment, keeps, Plan)
    out = q.new_empty(*q.shape[:3], v.shape[3])
    wide = plan.parts.normalizes
    inverse = q.new_empty(*q.shape[:2], q.shape[2] if wide else 0, dtype=torch.float32)
    if not plan.remembers:
        return out, inverse, *_nothing(q), *_nothing(q)
    batch, rows, width = q.shape[0], q.shape[0] * plan.key_heads, plan.width
    started = initial_sums is not None
    slots = plan.stretches(k.shape[2], rows, decays=decay is not None).slots(started=started) if causal else 1
    columns = plan.value_size * plan.value_blocks
    number = {"dtype": torch.float32}
    sums = q.new_empty(rows, slots, width, columns, dtype=plan.type)
    norms = q.new_empty(rows, slots, width if wide else 0, **number)
    if not keeps:
        return out, inverse, sums, norms, *_nothing(q)
    final = q.new_empty(batch, plan.key_heads, plan.features, plan.value_dim, **number)
    final_norms = q.new_empty((batch, plan.key_heads, plan.features, 1) if wide else 0, **number)
    return out, inverse, sums, norms, final, final_norms


def _attend_backward_fake(
    g, g_sums, g_norms, q, k, v, mask, decay, out, inverse, prefix_sums, prefix_norms,
    kind, scale, causal, segment, keeps,
):  # fmt: skip
    plan = _plan(q, k, v, kind, scale, causal, segment, keeps, Plan)
    first = _nothing(q)
    if keeps:
        shape, number = (q.shape[0], plan.key_heads, plan.features), {"dtype": torch.float32}
        wide = plan.parts.normalizes
        first = q.new_empty(*shape, plan.value_dim, **number), q.new_empty((*shape, 1) if wide else 0, **number)
    d_decay = torch.empty(0) if decay is None else torch.empty_like(decay)
    dq, dk, dv = (room_for(side_by_side(x)) for x in (q, k, v))
    return dq, dk, dv, d_decay, *first


feature_map_attention = define("feature_map_attention", _attend, _attend_fake)
feature_map_attention_backward = define("feature_map_attention_backward", _attend_backward, _attend_backward_fake)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
    q, k, v, mask, decay, initial_sums, initial_norms, *ctx.options = inputs
    out, inverse, prefix_sums, prefix_norms, _, _ = output
    ctx.started, ctx.started_norms = initial_sums is not None, initial_norms is not None
    ctx.save_for_backward(q, k, v, mask, decay, out, inverse, prefix_sums, prefix_norms)
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, g: Tensor | None, _: Any, __: Any, ___: Any, g_sums: Any, g_norms: Any) -> Any:
    q, k, v, mask, decay, out, inverse, prefix_sums, prefix_norms = ctx.saved_tensors
    if g is None:
        g = torch.zeros_like(out)
    if not KINDS[ctx.options[0]].normalizes:
        g_norms = None
    elif g_norms is None and g_sums is not None:
        g_norms = g_sums.new_zeros(*g_sums.shape[:3], 1)
    if g_sums is None and g_norms is not None:
        g_sums = g_norms.new_zeros(*g_norms.shape[:3], v.shape[3])
    dq, dk, dv, d_decay, d_sums, d_norms = feature_map_attention_backward(
        g, g_sums, g_norms, q, k, v, mask, decay, out, inverse, prefix_sums, prefix_norms, *ctx.options
    )
    return (
        dq,
        dk,
        dv,
        None,
        None if decay is None else d_decay,
        d_sums if ctx.started else None,
        d_norms if ctx.started_norms else None,
        *(None,) * len(ctx.options),
    )


differentiate(feature_map_attention, _save, _differentiate)


def _plan_in(q: Tensor, k: Tensor, v: Tensor, arguments: tuple[Any, ...]) -> Plan:
    kind, scale, causal, segment, keeps = arguments[-5:]
    return _plan(q, k, v, kind, scale, causal, segment, keeps, Plan)


def _forward_multiplications(arguments: tuple[Any, ...], _: Any) -> int:
    q, k, v = arguments[:3]
    return sum(_plan_in(q, k, v, arguments).forward_multiplications(*q.shape[:3]).values())


def _backward_multiplications(arguments: tuple[Any, ...], _: Any) -> int:
    q, k, v, _, decay = arguments[3:8]
    plan = _plan_in(q, k, v, arguments)
    return sum(plan.backward_multiplications(*q.shape[:3], decays=decay is not None).values())


FORMULAS["qkv.feature_map_attention"] = _forward_multiplications
FORMULAS["qkv.feature_map_attention_backward"] = _backward_multiplications
