"""The recurrent layers of `transformers` models, computed by the kinds `delta` and `linear`.

| theirs | ours |
|---|---|
| gated delta rule, KDA | `delta`: decay = -g, per token or per token and channel; unit keys; scale key_dim^-0.5 |
| Mamba-2 | `linear(scale=1)`: query C, key B, value dt x, decay -A dt; D x is added after it |
| lightning attention | `linear(scale=1)` with a constant decay per head |

Each function here takes a function of `transformers` and returns one with the same arguments, whose layout is
(batch, time, heads, dim). Like theirs, it computes in float32. It passes on to theirs what our kinds do not compute.
"""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from qkv.attention import Attention, RecurrentState, parse
from qkv.attention.base import expand_heads

State = Tensor | None
"""Initial state (batch, heads, key_dim, value_dim); None means zeros."""


def replace_delta_rule(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """Compute the gated delta rule, or KDA if the log gate `g` has an axis of channels."""

    @wraps(theirs)
    def compute(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, State]:
        """Return outputs and, if `output_final_state`, the state."""
        if _is_packed(options) or not options.get("use_qk_l2norm_in_kernel"):
            result: tuple[Tensor, State] = theirs(query, key, value, **options)
            return result
        gates = {"decay": _heads_first(-options["g"]), "beta": _heads_first(options["beta"])}
        out, state = _attend("delta", query, key, value, options.get("initial_state"), **gates)
        return out.to(query.dtype), state if options.get("output_final_state") else None

    return compute


def replace_mamba2_scan(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """Compute Mamba-2 of many tokens."""

    @wraps(theirs)
    def compute(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, /, **options: Any) -> Any:
        """Return outputs and, if `return_final_states`, the state (batch, heads, value_dim, key_dim)."""
        if _is_packed(options):
            return theirs(x, dt, a, b, c, **options)
        if options.get("dt_bias") is not None:
            dt = dt + options["dt_bias"].to(dt.dtype)
        if options.get("dt_softplus"):
            dt = functional.softplus(dt)
        dt = dt.clamp(*options.get("dt_limit", (0.0, torch.inf))).float()
        x, start = x.float(), options.get("initial_states")
        start = None if start is None else start.mT
        out, state = _attend("linear(scale=1)", c, b, dt[..., None] * x, start, decay=_heads_first(-a.float() * dt))
        if options.get("D") is not None:
            out = out + options["D"][:, None] * x
        return (out, state.mT) if options.get("return_final_states") else out

    return compute


def replace_lightning(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """Compute a layer of lightning attention; a single token is passed on, since theirs is faster there."""

    @wraps(theirs)
    def forward(layer: Any, hidden_states: Tensor, *places: Any, **options: Any) -> tuple[Tensor, Tensor]:
        """Return outputs and the state."""
        if hidden_states.shape[1] == 1 or places:
            result: tuple[Tensor, Tensor] = theirs(layer, hidden_states, *places, **options)
            return result
        mixed, mask = layer.act_fn(layer.qkv_proj(hidden_states)), options.get("attention_mask")
        if mask is not None:
            mixed = (mixed * mask[:, :, None]).to(mixed.dtype)
        query, key, value = mixed.unflatten(-1, (layer.num_attention_heads, -1)).split(layer.head_dim, -1)
        cache = options.get("past_key_values")
        start = None if cache is None else cache.get_linear_cache(layer.layer_idx)
        rates = layer.slope_rate.flatten().float()
        out, state = _attend("linear(scale=1)", query, key, value, start, decay=rates)
        if cache is not None:
            cache.set_linear_cache(layer.layer_idx, state)
        out = layer.norm(out.to(mixed.dtype).flatten(2))
        return layer.out_proj(torch.sigmoid(layer.output_gate(hidden_states)) * out), state

    return forward


def _attend(
    kind: str, query: Tensor, key: Tensor, value: Tensor, state: State, **gates: Tensor
) -> tuple[Tensor, Tensor]:
    """Continue the sequence of `state`; return outputs (batch, time, heads, value_dim) in float32 and the new state."""
    heads = value.shape[2]
    q, k, v = (expand_heads(_heads_first(x), heads) for x in (query, key, value))
    if state is None:
        state = v.new_zeros(*v.shape[:2], k.shape[3], v.shape[3])
    out, new = _mechanism(kind).step(q, k, v, RecurrentState(state.float()), **gates)
    assert isinstance(new, RecurrentState)
    return out.transpose(1, 2), new.kv_sum


@lru_cache
def _mechanism(kind: str) -> Attention:
    return parse(kind)


def _heads_first(x: Tensor) -> Tensor:
    """Swap time and heads, in float32."""
    return x.transpose(1, 2).float()


def _is_packed(options: dict[str, Any]) -> bool:
    """Return whether a row holds several sequences: theirs raises an error that names the package to install."""
    return options.get("cu_seqlens") is not None or options.get("seq_idx") is not None
