"""The matrix that a linear attention implies, versus softmax, on the same queries and keys.

    exact_ij = exp(s_ij) / sum_n exp(s_in)        implied_ij = phi(q_i).phi(k_j) / sum_n phi(q_i).phi(k_n)

No fast form of a linear kind ever builds its matrix. It is computed here from the definition and compared with the
recurrence, which adds one key at a time to the state.
"""

from dataclasses import dataclass
from math import factorial

import torch
from torch import Tensor

from qkv.attention import Attention, FeatureMap, Softmax
from qkv.cancellation import check_canceled
from qkv.explain.record_calls import AttentionCall

ORDERS = range(8)


@dataclass(frozen=True)
class OrderError:
    """Error of replacing exp by its Taylor polynomial of one order."""

    order: int
    weights: float
    """max |polynomial weights - softmax weights|; inf where a row's sum is 0."""
    output: float
    """||polynomial output - softmax output|| / ||softmax output||"""
    smallest: float
    """Smallest weight: below 0 for some odd orders, which is why Taylor attention takes even ones."""


@dataclass(frozen=True)
class KindComparison:
    """Two attention matrices of one head and their difference."""

    exact: Tensor
    """(queries, keys), softmax."""
    implied: Tensor
    """(queries, keys), of the other kind."""
    scores: Tensor
    """(queries, keys): q.k / sqrt(key_dim), before masking."""
    state_norms: Tensor
    """(keys, value_dim): norm of each column of the state after each key; empty for kinds without a state."""
    feature_dim: int
    """Rows of the state; 0 for kinds without one."""
    recurrence_error: float
    """max |output of the recurrence - implied @ v|."""
    order_errors: list[OrderError]


def compare_kinds(call: AttentionCall, attention: Attention) -> KindComparison:
    """Run one head's q, k and v through softmax and through another kind; bias and decay are left out of both.

    `call` has one head and one sequence (`AttentionRecord.head`).
    """
    if call.q.shape[:2] != (1, 1):
        raise ValueError(f"call must have one sequence and one head, got q of shape {tuple(call.q.shape)}")
    causal = bool(call.options.get("causal", False))
    # in float64, so that only the kinds differ and not the rounding
    q, k, v = (x.detach().double() for x in (call.q, call.k, call.v))
    exact = Softmax().weights(q, k, causal=causal)
    implied = attention.weights(q, k, causal=causal)
    scores = (q @ k.mT)[0, 0] * q.shape[-1] ** -0.5
    state_norms, feature_dim = _state_norms(attention, k, v)
    return KindComparison(
        exact[0, 0],
        implied[0, 0],
        scores,
        state_norms,
        feature_dim,
        float((_recurrent_output(attention, q, k, v, causal) - implied @ v).abs().max()),
        [_order_error(order, scores, exact[0, 0], v[0, 0], causal) for order in ORDERS],
    )


def taylor_polynomial(scores: Tensor, order: int) -> Tensor:
    """Return sum_(n <= order) s^n / n!"""
    return torch.stack([scores**n / factorial(n) for n in range(order + 1)]).sum(0)


def _recurrent_output(attention: Attention, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Add keys and values to the state one by one; a causal query reads after its own key, others after the last."""
    if causal:
        return _step_through(attention, q, k, v)
    if not isinstance(attention, FeatureMap):
        return attention(q, k, v)
    scale = attention.default_scale(q.shape[-1]) if attention.scale is None else attention.scale
    queries, keys = attention.features(q[0, 0] * scale), attention.features(k[0, 0])
    total = queries @ (keys.mT @ v[0, 0])
    if attention.normalizes:
        total = total / (queries @ keys.sum(0))[:, None]
    return total[None, None]


def _step_through(attention: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    state = attention.start(1, k.shape[1], k.shape[3], v.shape[3], dtype=q.dtype)
    outputs = []
    for t in range(k.shape[2]):
        check_canceled()
        now = slice(t, t + 1)
        output, state = attention.step(q[:, :, now], k[:, :, now], v[:, :, now], state)
        outputs.append(output)
    return torch.cat(outputs, 2)


def _state_norms(attention: Attention, k: Tensor, v: Tensor) -> tuple[Tensor, int]:
    """Return the norm of each column of the state after each key (keys, value_dim), and the number of features."""
    if not isinstance(attention, FeatureMap):
        return torch.zeros(0, v.shape[-1]), 0
    features = attention.features(k[0, 0])
    state = torch.zeros(features.shape[1], v.shape[-1], dtype=k.dtype)
    norms = []
    for phi, value in zip(features, v[0, 0], strict=True):
        check_canceled()
        state = state + phi[:, None] * value
        norms.append(state.norm(dim=0))
    return torch.stack(norms), features.shape[1]


def _order_error(order: int, scores: Tensor, exact: Tensor, v: Tensor, causal: bool) -> OrderError:
    weights = taylor_polynomial(scores, order)
    visible = torch.ones_like(weights, dtype=torch.bool)
    if causal:
        visible = visible.tril()
    weights = weights.masked_fill(~visible, 0)
    weights = weights / weights.sum(-1, keepdim=True)
    output = (weights @ v - exact @ v).norm() / (exact @ v).norm()
    return OrderError(order, float((weights - exact).abs().max()), float(output), float(weights[visible].min()))
