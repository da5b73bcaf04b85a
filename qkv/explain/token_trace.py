"""One query through attention, a step at a time, with every number on the way.

    products_jd -> sum over d -> scores_j -> + bias, hidden -> exp or polynomial -> weights_j -> weights_j v_j -> sum

Computed in float64 from the formulas, step by step, not by the mechanism: so that it agrees with what the model's
fast form gave is a test of both.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.attention import Additive, Attention, FeatureMap, Scored, Taylor
from qkv.attention.internal.masking import visible
from qkv.explain.implied_weights import taylor_polynomial
from qkv.explain.record_calls import Call

DOT_PRODUCTS = ("softmax", "taylor", "linear")


@dataclass(frozen=True)
class TokenSteps:
    """What one head does for one query; tensors over the keys, `dims` is what the products are over."""

    asking: Tensor
    """(dims,): q, or what stands in its place: features of q, U q."""
    answering: Tensor
    """(keys, dims): k, or its features, or V k."""
    products: Tensor
    """(keys, dims): their sum over dims is `sums`."""
    sums: Tensor
    scale: float
    scores: Tensor
    """scale * sums"""
    bias: Tensor
    """What positions add to the scores; 0 where they do not."""
    fade: Tensor
    """What positions multiply the unnormalized weight by; 1 where they do not."""
    hidden: Tensor
    """True where the query may not look."""
    largest: float
    """Subtracted before exp, so that nothing overflows; 0 for kinds without exp."""
    raw: Tensor
    """The unnormalized weight; 0 where hidden."""
    total: float
    weights: Tensor
    values: Tensor
    """(keys, value_dim)"""
    output: Tensor
    """(value_dim,): sum_j weights_j values_j"""


def token_steps(call: Call, query: int) -> TokenSteps:
    """The steps of query number `query`; `call` has one sequence and one head, as `Look.head` gives it."""
    if call.q.shape[:2] != (1, 1):
        raise ValueError(f"call must be of one sequence and one head, got q of shape {tuple(call.q.shape)}")
    if not 0 <= query < call.q.shape[2]:
        raise ValueError(f"query must be from 0 to {call.q.shape[2] - 1}, got {query}")
    attention, keys = call.attention, call.k.shape[2]
    q, k, v = (x.detach().double()[0, 0] for x in (call.q, call.k, call.v))
    asking, answering, products, scale = _multiply(attention, q[query], k)
    sums = products.sum(-1)
    bias, fade = _positions(call, query, keys)
    hidden = _hidden(call, query, keys)
    scores = scale * sums
    raw, largest = _weigh(attention, scores + bias, hidden)
    raw = (raw * fade).masked_fill(hidden, 0)
    total = float(raw.sum())
    weights = raw / total if getattr(attention, "normalizes", True) and total else raw
    found = asking, answering, products, sums, scale, scores, bias, fade, hidden, largest, raw, total, weights, v
    return TokenSteps(*found, weights @ v)


def _multiply(attention: Attention, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor, float]:
    """(asking, answering, products, scale)"""
    if isinstance(attention, Additive):
        asked, held = (x @ w.weight.detach().double().T for x, w in ((q, attention.query), (k, attention.key)))
        return asked, held, attention.score.detach().double() * torch.tanh(asked + held), 1.0
    given = getattr(attention, "scale", None)
    if attention.kind in DOT_PRODUCTS:
        return q, k, q * k, float(q.shape[-1] ** -0.5 if given is None else given)
    if not isinstance(attention, FeatureMap):
        raise TypeError(f"attention kind {attention.kind!r} has no steps that are known here")
    scale = attention.default_scale(q.shape[-1]) if given is None else float(given)
    asked, held = attention.features(q[None] * scale)[0], attention.features(k)
    return asked, held, asked * held, 1.0


def _positions(call: Call, query: int, keys: int) -> tuple[Tensor, Tensor]:
    bias, decay = call.options.get("bias"), call.options.get("decay")
    added = torch.zeros(keys, dtype=torch.float64) if bias is None else bias.detach().double()[0, 0, query]
    if decay is None:
        return added, torch.ones_like(added)
    distance = (query - torch.arange(keys)).clamp(min=0)
    return added, torch.exp(-decay.detach().double()[0] * distance)


def _hidden(call: Call, query: int, keys: int) -> Tensor:
    seen = visible(
        call.q.shape[2],
        keys,
        causal=bool(call.options.get("causal", False)),
        window=getattr(call.attention, "window", None),
        mask=call.options.get("mask"),
        device=call.q.device,
    )
    return (
        torch.zeros(keys, dtype=torch.bool) if seen is None else ~seen.expand(1, 1, call.q.shape[2], keys)[0, 0, query]
    )


def _weigh(attention: Attention, scores: Tensor, hidden: Tensor) -> tuple[Tensor, float]:
    """The unnormalized weights, and what was subtracted before exp."""
    if isinstance(attention, Scored):
        largest = float(scores.masked_fill(hidden, -torch.inf).max())
        return torch.exp(scores - largest), largest
    if isinstance(attention, Taylor):
        return taylor_polynomial(scores, attention.order), 0.0
    return scores, 0.0
