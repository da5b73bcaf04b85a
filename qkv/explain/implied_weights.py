"""A linear attention's implied matrix beside softmax, on the same queries and keys.

    exact_ij = exp(s_ij) / sum_n exp(s_in)        implied_ij = phi(q_i).phi(k_j) / sum_n phi(q_i).phi(k_n)

No fast form of a linear kind ever builds its matrix; it is computed here from the definition, and what the
recurrence gives, a key folded into the state at a time, is compared with it.
"""

from dataclasses import dataclass
from math import factorial

import torch
from torch import Tensor

from qkv.attention import Attention, FeatureMap, Softmax
from qkv.explain.record_calls import Call

ORDERS = range(8)


@dataclass(frozen=True)
class OrderError:
    """The Taylor polynomial of one order in the place of exp."""

    order: int
    weights: float
    """max |polynomial weights - softmax weights|; inf where a row's sum is 0."""
    output: float
    """||polynomial output - softmax output|| / ||softmax output||"""
    smallest: float
    """The smallest weight: below 0 for some odd orders, which is why attention takes even ones."""


@dataclass(frozen=True)
class Implied:
    """Two matrices of one head, and how they differ."""

    exact: Tensor
    """(queries, keys), softmax."""
    implied: Tensor
    """(queries, keys), of the other kind."""
    scores: Tensor
    """(queries, keys): q.k / sqrt(key_dim), before anything is hidden."""
    growth: Tensor
    """(keys, value_dim): the norm of each column of the state after each key; empty for kinds without one."""
    features: int
    """Rows of the state; 0 for kinds without one."""
    recurrence: float
    """max |what the recurrence gives - implied @ v|."""
    orders: list[OrderError]


def compare_kinds(call: Call, attention: Attention) -> Implied:
    """One head's q, k and v through softmax and through another kind; a bias or decay is left out of both.

    `call` has one head and one sequence, as `Look.head` gives it.
    """
    if call.q.shape[:2] != (1, 1):
        raise ValueError(f"call must be of one sequence and one head, got q of shape {tuple(call.q.shape)}")
    causal = bool(call.options.get("causal", False))
    # in float64: what differs is then the kinds, not the rounding
    q, k, v = (x.detach().double() for x in (call.q, call.k, call.v))
    exact = Softmax().weights(q, k, causal=causal)
    implied = attention.weights(q, k, causal=causal)
    scores = (q @ k.mT)[0, 0] * q.shape[-1] ** -0.5
    growth, features = _growth(attention, k, v)
    return Implied(
        exact[0, 0],
        implied[0, 0],
        scores,
        growth,
        features,
        float((_recurrent(attention, q, k, v, causal) - implied @ v).abs().max()),
        [_order_error(order, scores, exact[0, 0], v[0, 0], causal) for order in ORDERS],
    )


def taylor_polynomial(scores: Tensor, order: int) -> Tensor:
    """sum_(n <= order) s^n / n!"""
    return torch.stack([scores**n / factorial(n) for n in range(order + 1)]).sum(0)


def _recurrent(attention: Attention, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Keys and values folded one after the other; each query reads after its own key, or all after the last."""
    sizes = k.shape[1], k.shape[3], v.shape[3]
    state = attention.start(1, *sizes, dtype=q.dtype)
    outputs = []
    if causal:
        for t in range(k.shape[2]):
            now = slice(t, t + 1)
            out, state = attention.step(q[:, :, now], k[:, :, now], v[:, :, now], state)
            outputs.append(out)
        return torch.cat(outputs, 2)
    if not isinstance(attention, FeatureMap):
        return attention(q, k, v)
    scale = attention.default_scale(q.shape[-1]) if attention.scale is None else attention.scale
    reading, writing = attention.features(q[0, 0] * scale), attention.features(k[0, 0])
    total = reading @ (writing.mT @ v[0, 0])
    return (total / (reading @ writing.sum(0))[:, None] if attention.normalizes else total)[None, None]


def _growth(attention: Attention, k: Tensor, v: Tensor) -> tuple[Tensor, int]:
    if not isinstance(attention, FeatureMap):
        return torch.zeros(0, v.shape[-1]), 0
    features = attention.features(k[0, 0])
    state = torch.zeros(features.shape[1], v.shape[-1], dtype=k.dtype)
    norms = []
    for phi, value in zip(features, v[0, 0], strict=True):
        state = state + phi[:, None] * value
        norms.append(state.norm(dim=0))
    return torch.stack(norms), features.shape[1]


def _order_error(order: int, scores: Tensor, exact: Tensor, v: Tensor, causal: bool) -> OrderError:
    weights = taylor_polynomial(scores, order)
    seen = torch.ones_like(weights, dtype=torch.bool)
    if causal:
        seen = seen.tril()
    weights = weights.masked_fill(~seen, 0)
    weights = weights / weights.sum(-1, keepdim=True)
    output = (weights @ v - exact @ v).norm() / (exact @ v).norm()
    return OrderError(order, float((weights - exact).abs().max()), float(output), float(weights[seen].min()))
