"""Rescore the n-best list of a network with a joint n-gram model.

    softmax over the list of   sharpness (log p(phones | word) + weight log p_joint(word, phones))

times the probability mass of the list. Weight and sharpness maximize the likelihood of the right answers of held-out
words within their lists: networks and n-grams are both overconfident, each to its own degree.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qkv.pronunciation.joint_ngram import JointNGram

if TYPE_CHECKING:
    from qkv.data import Pair
    from qkv.decode import Hypothesis
    from qkv.pronunciation.neural import NeuralG2P

MAX_WEIGHT = 10.0
"""Upper bound of the weight: with few held-out words the fit is unbounded."""


def rescore(
    joint: JointNGram, word: str, found: "list[Hypothesis]", phones: Sequence[Sequence[str]]
) -> "list[Hypothesis]":
    """Return the hypotheses in their new order; `phones` are those of each.

    If one cannot be segmented into units, such as the name of a letter, the order stays: the joint model could not have
    learned from it and would rank it last.
    """
    own = torch.tensor([one.score for one in found], dtype=torch.float64)
    other = torch.tensor([joint.score(word, one) for one in phones], dtype=torch.float64)
    mass = torch.tensor([one.log_probability for one in found], dtype=torch.float64).logsumexp(0)
    if len(found) < 2 or not other.isfinite().all() or not mass.isfinite():
        return found
    rescored = ((joint.sharpness * (own + joint.weight * other)).log_softmax(0) + mass).tolist()
    order = sorted(range(len(found)), key=lambda n: (not found[n].finished, -rescored[n]))
    return [replace(found[n], log_probability=rescored[n], score=rescored[n]) for n in order]


@dataclass(frozen=True)
class JointWeights:
    """Fitted weight and sharpness, and the error rates on held-out words."""

    weight: float
    sharpness: float
    words: int
    wrong_alone: float
    """Word error rate without the joint model, a fraction."""
    wrong_with: float
    """Word error rate with it, cross-validated: each half with the weight fitted on the other."""


def fit_joint_weights(network: "NeuralG2P", joint: JointNGram, pairs: "Sequence[Pair]", beams: int) -> JointWeights:
    """Fit the weight for this network on its predictions for held-out words."""
    words = ["".join(pair.source) for pair in pairs]
    supported = [index for index, word in enumerate(words) if network.unsupported_reason(word) is None]
    lists = network.predict([words[index] for index in supported], best=beams, beams=beams)
    own = torch.full((len(supported), beams), -torch.inf, dtype=torch.float64)
    other, right = torch.zeros_like(own), torch.zeros(own.shape, dtype=torch.bool)
    for row, (index, found) in enumerate(zip(supported, lists, strict=True)):
        for column, one in enumerate(found):
            own[row, column] = math.log(max(one.probability, 1e-300))
            other[row, column] = joint.score(words[index], one.phones)
            right[row, column] = one.phones in pairs[index].targets
    other[~other.isfinite().all(1)] = 0.0  # the order stays, as in `rescore`
    halves = torch.arange(len(supported)) % 2 == 0
    cross_validated = sum(
        _is_wrong(own + _maximize_likelihood(own[~half], other[~half], right[~half])[0] * other, right)[half].sum()
        for half in (halves, ~halves)
    )
    unsupported = len(words) - len(supported)
    weight, sharpness = _maximize_likelihood(own, other, right)
    return JointWeights(
        weight=weight,
        sharpness=sharpness,
        words=len(words),
        wrong_alone=(int(_is_wrong(own, right).sum()) + unsupported) / len(words),
        wrong_with=(int(cross_validated) + unsupported) / len(words),
    )


def _maximize_likelihood(own: Tensor, other: Tensor, right: Tensor) -> tuple[float, float]:
    """Return weight and sharpness that maximize the likelihood of right answers; lists without one are left out."""
    usable = right.any(1)
    if not usable.any():
        return 0.0, 1.0
    own, other, wrong = own[usable], other[usable], ~right[usable]
    factors = torch.tensor([1.0, 0.5], dtype=torch.float64, requires_grad=True)  # factors of own and of other
    optimizer = torch.optim.LBFGS([factors], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        totals = torch.where(own > -torch.inf, factors[0] * own.clamp(min=-1e9) + factors[1] * other, -torch.inf)
        loss = (totals.logsumexp(1) - totals.masked_fill(wrong, -torch.inf).logsumexp(1)).mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    own_factor, other_factor = factors.tolist()
    if own_factor <= 0:  # the network's own scores are misleading
        return 0.0, 1.0
    return min(max(other_factor / own_factor, 0.0), MAX_WEIGHT), own_factor


def _is_wrong(totals: Tensor, right: Tensor) -> Tensor:
    return ~right.gather(1, totals.argmax(1, keepdim=True))[:, 0]
