"""A network's answers in a new order: by its own belief and that of a joint model.

    softmax over the list of   sharpness (log p(phones | word) + weight log p_joint(word, phones))

times the mass that the list has. Weight and sharpness are those under which the right answers of held-out words are
likeliest among the others of their lists: networks and n-grams are both too sure of themselves, and by how much they
are must be known before one can be weighed against the other.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qkv.pronunciation.joint_ngram import Joint

if TYPE_CHECKING:
    from qkv.data import Pair
    from qkv.decode import Hypothesis
    from qkv.pronunciation.neural import Network

HEAVIEST = 10.0
"""The largest weight: few held-out words can make it anything."""


def rescore(joint: Joint, word: str, found: "list[Hypothesis]", phones: Sequence[Sequence[str]]) -> "list[Hypothesis]":
    """The same hypotheses, likeliest first; `phones` is what each says.

    Where one cannot be cut into units, such as the name of a letter, the joint model has no say: it could not have been
    learned from, and would be the least likely of all.
    """
    own = torch.tensor([one.score for one in found], dtype=torch.float64)
    other = torch.tensor([joint.score(word, said) for said in phones], dtype=torch.float64)
    mass = torch.tensor([one.log_probability for one in found], dtype=torch.float64).logsumexp(0)
    if len(found) < 2 or not other.isfinite().all() or not mass.isfinite():
        return found
    shared = ((joint.sharpness * (own + joint.weight * other)).log_softmax(0) + mass).tolist()
    order = sorted(range(len(found)), key=lambda n: (not found[n].finished, -shared[n]))
    return [replace(found[n], log_probability=shared[n], score=shared[n]) for n in order]


@dataclass(frozen=True)
class Chosen:
    """A weight, and what it does to held-out words."""

    weight: float
    sharpness: float
    words: int
    wrong_alone: float
    """Words wrong without the joint model, a share."""
    wrong_with: float
    """And with it: each half of the words judged with the weight that suits the other half."""


def choose(network: "Network", joint: Joint, pairs: "Sequence[Pair]", beams: int) -> Chosen:
    """The weight for this network, by what it says of words that it was not trained on."""
    words = ["".join(pair.source) for pair in pairs]
    ready = [number for number, word in enumerate(words) if network.refuse(word) is None]
    lists = network.say([words[number] for number in ready], best=beams, beams=beams)
    own = torch.full((len(ready), beams), -torch.inf, dtype=torch.float64)
    other, right = torch.zeros_like(own), torch.zeros(own.shape, dtype=torch.bool)
    for row, (number, ways) in enumerate(zip(ready, lists, strict=True)):
        for column, way in enumerate(ways):
            own[row, column] = math.log(max(way.probability, 1e-300))
            other[row, column] = joint.score(words[number], way.phones)
            right[row, column] = way.phones in pairs[number].targets
    other[~other.isfinite().all(1)] = 0.0  # no say, as in `rescore`
    halves = torch.arange(len(ready)) % 2 == 0
    crossed = sum(
        _wrong(own + _likeliest(own[~half], other[~half], right[~half])[0] * other, right)[half].sum()
        for half in (halves, ~halves)
    )
    refused = len(words) - len(ready)
    weight, sharpness = _likeliest(own, other, right)
    return Chosen(
        weight=weight,
        sharpness=sharpness,
        words=len(words),
        wrong_alone=(int(_wrong(own, right).sum()) + refused) / len(words),
        wrong_with=(int(crossed) + refused) / len(words),
    )


def _likeliest(own: Tensor, other: Tensor, right: Tensor) -> tuple[float, float]:
    """Weight and sharpness under which the right ones have most of their lists; a list without one says nothing."""
    able = right.any(1)
    if not able.any():
        return 0.0, 1.0
    own, other, hidden = own[able], other[able], ~right[able]
    factors = torch.tensor([1.0, 0.5], dtype=torch.float64, requires_grad=True)  # of own and of other
    search = torch.optim.LBFGS([factors], max_iter=100, line_search_fn="strong_wolfe")

    def lost() -> Tensor:
        search.zero_grad()
        totals = torch.where(own > -torch.inf, factors[0] * own.clamp(min=-1e9) + factors[1] * other, -torch.inf)
        loss = (totals.logsumexp(1) - totals.masked_fill(hidden, -torch.inf).logsumexp(1)).mean()
        loss.backward()
        return loss

    search.step(lost)
    trusted, checked = factors.tolist()
    if trusted <= 0:  # a network that is wrong about its own answers: there is nothing to add to
        return 0.0, 1.0
    return min(max(checked / trusted, 0.0), HEAVIEST), trusted


def _wrong(totals: Tensor, right: Tensor) -> Tensor:
    return ~right.gather(1, totals.argmax(1, keepdim=True))[:, 0]
