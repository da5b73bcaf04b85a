"""One query through attention, step by step, with every value on the way.

    products_jd -> sum over d -> scores_j -> + bias, mask -> law (exp, ...) -> weights_j -> weights_j v_j -> sum

Computed in float64 from the terms and the law that the kind gives, not by its fast form. Agreement with the model's
output therefore tests both.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.attention.internal.gates import pair_exponents, running_sums
from qkv.attention.internal.masking import visibility_mask
from qkv.attention.internal.validation import Modifiers
from qkv.explain.record_calls import AttentionCall


@dataclass(frozen=True)
class TokenTrace:
    """The steps of one head for one query; `dims` is the dimension that the products are summed over."""

    query: Tensor
    """(dims,): q, or the vector that replaces it: features of q, U q."""
    keys: Tensor
    """(keys, dims): k, or the vectors that replace it."""
    products: Tensor
    """(keys, dims): terms of `sums`; (keys, 0) for a kind that gives its weights only by the definition."""
    sums: Tensor
    scale: float
    scores: Tensor
    """scale * sums; the weights themselves for a kind without terms."""
    bias: Tensor
    """Position bias added to the scores; 0 without one."""
    decay: Tensor
    """Position factor that multiplies the unnormalized weights; 1 without one."""
    masked: Tensor
    """True where the query may not attend."""
    max_score: float
    """Largest score, subtracted before exp so that it cannot overflow; 0 for kinds without exp."""
    unnormalized: Tensor
    """Unnormalized weights; 0 where masked."""
    normalizer: float
    weights: Tensor
    values: Tensor
    """(keys, value_dim)"""
    output: Tensor
    """(value_dim,): sum_j weights_j values_j"""

    @property
    def has_terms(self) -> bool:
        """Whether the steps before the weights are known."""
        return self.products.shape[1] > 0


def trace_token(call: AttentionCall, query: int) -> TokenTrace:
    """Return the steps of the query at this index; `call` has one sequence and one head (`AttentionRecord.head`)."""
    if call.q.shape[:2] != (1, 1):
        raise ValueError(f"call must have one sequence and one head, got q of shape {tuple(call.q.shape)}")
    if not 0 <= query < call.q.shape[2]:
        raise ValueError(f"query must be from 0 to {call.q.shape[2] - 1}, got {query}")
    attention = call.attention
    q, k, v = (x.detach().double()[0, 0] for x in (call.q, call.k, call.v))
    terms = attention.score_terms(q[query], k)
    modifiers = Modifiers(**call.options)
    if terms is None or modifiers.channel_gated:
        return _trace_definition(call, query, q[query], k, v)
    sums = terms.products.sum(-1)
    scores = terms.scale * sums
    bias, decay = _position_terms(call, query, modifiers)
    masked = _masked_keys(call, query)
    biased = scores + bias
    max_score = float(biased.masked_fill(masked, -torch.inf).max()) if attention.law.exponential else 0.0
    unnormalized = (attention.weigh_scores(biased - max_score) * decay).masked_fill(masked, 0)
    normalizer = float(unnormalized.sum())
    weights = unnormalized / normalizer if attention.normalizes and normalizer else unnormalized
    return TokenTrace(
        query=terms.query,
        keys=terms.keys,
        products=terms.products,
        sums=sums,
        scale=terms.scale,
        scores=scores,
        bias=bias,
        decay=decay,
        masked=masked,
        max_score=max_score,
        unnormalized=unnormalized,
        normalizer=normalizer,
        weights=weights,
        values=v,
        output=weights @ v,
    )


def _trace_definition(call: AttentionCall, query: int, q: Tensor, k: Tensor, v: Tensor) -> TokenTrace:
    """Trace a kind that gives no terms: only its weights, by the definition, are known."""
    weights = call.weights().detach().double()[0, 0, query]
    return TokenTrace(
        query=q,
        keys=k,
        products=k[:, :0],
        sums=weights,
        scale=1.0,
        scores=weights,
        bias=torch.zeros_like(weights),
        decay=torch.ones_like(weights),
        masked=_masked_keys(call, query),
        max_score=0.0,
        unnormalized=weights,
        normalizer=float(weights.sum()),
        weights=weights,
        values=v,
        output=weights @ v,
    )


def _position_terms(call: AttentionCall, query: int, modifiers: Modifiers) -> tuple[Tensor, Tensor]:
    """Return (bias, decay) of each key."""
    keys = call.k.shape[2]
    bias, decay = modifiers.bias, modifiers.decay
    added = torch.zeros(keys, dtype=torch.float64) if bias is None else bias.detach().double()[0, 0, query]
    if decay is None:
        return added, torch.ones_like(added)
    if modifiers.gated:
        return added, pair_exponents(running_sums(decay.detach(), modifiers.mask))[0, 0, query].exp()
    distance = (query - torch.arange(keys)).clamp(min=0)
    return added, torch.exp(-decay.detach().double()[0] * distance)


def _masked_keys(call: AttentionCall, query: int) -> Tensor:
    """Return True for each key that the query may not attend to."""
    queries, keys = call.q.shape[2], call.k.shape[2]
    visible = visibility_mask(
        queries,
        keys,
        causal=bool(call.options.get("causal", False)),
        window=getattr(call.attention, "window", None),
        mask=call.options.get("mask"),
        documents=Modifiers(starts=call.options.get("starts")).documents,
        device=call.q.device,
    )
    if visible is None:
        return torch.zeros(keys, dtype=torch.bool)
    return ~visible.expand(1, 1, queries, keys)[0, 0, query]
