"""Word vectors (word2vec): two tables, trained by separating the neighbors of a word from noise words.

    skip_gram   score(w, c) = center_w . context_c                        for every neighbor c of w
    cbow        score(w)    = mean of center_c over neighbors c . context_w
    loss        sum over scores:  log(1 + e^-score)  +  negatives * mean over noise n of log(1 + e^score(., n))

A group of words shares its noise words, so the mean is over more of them than `negatives`; the expectation is equal.
Papers: https://arxiv.org/abs/1310.4546; shared noise as matrix products: https://arxiv.org/abs/1604.04661.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional

from qkv.cost import Cost, Span, parameters_only
from qkv.data import SkipGramBatch
from qkv.errors import unknown_name_error
from qkv.models.registry import register
from qkv.models.validation import require_at_least

OBJECTIVES = ("skip_gram", "cbow")
GROUPS = 32
"""Groups per update of the tables."""
MAX_STEP = 2.0
"""Largest learning rate times scores of one word per update of the tables; beyond it, training could diverge."""

Table = Float[Tensor, "words dim"]
Words = Int64[Tensor, "batch many"]
Scores = Float[Tensor, "batch sources targets"]


@dataclass(frozen=True)
class WordVectorsConfig:
    """Settings of word vectors."""

    dim: int = 100
    """Width of the vectors."""
    objective: str = "skip_gram"
    """skip_gram: neighbors from a word; cbow: a word from the mean of its neighbors."""
    negatives: int = 5
    """Noise words per neighbor."""

    def __post_init__(self) -> None:
        require_at_least(1, self, "dim", "negatives")
        if self.objective not in OBJECTIVES:
            raise unknown_name_error("objective", self.objective, OBJECTIVES)


@register("word_vectors", WordVectorsConfig)
class WordVectors(nn.Module):
    """A center vector and a context vector per word."""

    def __init__(self, config: WordVectorsConfig, words: int):
        super().__init__()
        if words < 1:
            raise ValueError(f"words must be at least 1, got {words}")
        self.config = config
        # initialized as in gensim; word2vec's are half as long and end with a higher held-out loss
        self.center = nn.Parameter((2 * torch.rand(words, config.dim) - 1) / config.dim)
        self.context = nn.Parameter(torch.zeros(words, config.dim))

    def forward(self, source: Words, target: Words) -> Scores:
        """Return the score of each source with each target; with cbow all sources are averaged, so sources = 1."""
        given = self.center[source]
        if self.config.objective == "cbow":
            given = given.mean(1, keepdim=True)
        return given @ self.context[target].transpose(1, 2)

    def loss(self, windows: SkipGramBatch) -> Tensor:
        """Return the loss by its definition: summed over neighbors; with cbow, over words that have any."""
        given, pairs = self._given(windows.is_neighbor, self.center[windows.centers], self.center[windows.contexts])
        if self.config.objective == "cbow":
            right = (given * self.context[windows.centers]).sum(-1)
            found = functional.softplus(-right) * pairs[..., 0]
        else:
            right = given @ self.context[windows.contexts].transpose(1, 2)
            found = functional.softplus(-right) * windows.is_neighbor
        noise = given @ self.context[windows.negatives].transpose(1, 2)
        share = self.config.negatives / windows.negatives.shape[1]
        return found.sum() + share * (functional.softplus(noise) * pairs).sum()

    def count(self, windows: SkipGramBatch) -> int:
        """Return the number of terms that the loss is summed over."""
        seen = windows.is_neighbor
        # amax of bytes: the same as any(), in half the time
        return int(seen.view(torch.uint8).amax(-1).sum() if self.config.objective == "cbow" else seen.sum())

    @torch.no_grad()
    def update(self, windows: SkipGramBatch, rate: float) -> float:
        """Take SGD steps on `loss`, GROUPS groups at a time; return the sum of the losses before each step.

        Only rows that occur are read and written: a gradient as large as the tables would take most of the time. As in
        word2vec, cbow adds its whole error to each neighbor, although each is only a fraction of the mean.
        """
        update = self._update_cbow if self.config.objective == "cbow" else self._update_skip_gram
        return float(update(windows, rate))

    def _rates(self, windows: SkipGramBatch, rate: float) -> Tensor:
        """Return (2, words): the rate of each row of center and context, below `rate` for very common words only.

        Sequential updates of a row would see each other; many simultaneous ones would overshoot.
        """
        groups = len(windows.centers)
        words, noise = (
            ids.flatten().bincount(minlength=len(self.center)) for ids in (windows.centers, windows.negatives)
        )
        words, noise = words / windows.centers.numel(), self.config.negatives * noise / windows.negatives.numel()
        center = (1 + self.config.negatives) * words * int(windows.is_neighbor.sum())
        context = (words + noise) * self.count(windows)
        scores = torch.stack((center, context)) * (rate * min(GROUPS, groups) / groups)
        return rate * (MAX_STEP / scores).clamp_(max=1).to(self.center.dtype)

    def _update_skip_gram(self, windows: SkipGramBatch, rate: float) -> Tensor:
        shared, around = windows.negatives.shape[1], windows.contexts.shape[1]
        right = functional.pad(windows.is_neighbor.to(self.center.dtype), (0, shared))
        weight = right.clone()
        weight[..., around:] = right.sum(-1, keepdim=True) * (self.config.negatives / shared)
        targets = torch.cat((windows.contexts, windows.negatives), 1)
        center, context = self._rates(windows, rate)
        rates = center[windows.centers][..., None], context[targets][:, None]
        scores = torch.empty_like(right)
        ids = _parts(windows.centers, targets)
        for (words, target), parts in zip(ids, _parts(scores, right, weight, *rates), strict=True):
            score, positive, weights, own, other = parts
            given, wanted = _rows(self.center, words), _rows(self.context, target)
            torch.bmm(given, wanted.transpose(1, 2), out=score)
            pull = torch.addcmul(positive, weights, score.sigmoid(), value=-1)  # - d loss / d score
            _add(self.context, target, torch.bmm((pull * other).transpose(1, 2), given))
            _add(self.center, words, torch.bmm(pull.mul_(own), wanted))
        return _dot(weight, functional.softplus(scores)) - _dot(right, scores)

    def _update_cbow(self, windows: SkipGramBatch, rate: float) -> Tensor:
        seen = windows.is_neighbor.to(self.center.dtype)
        pairs = seen.sum(-1, keepdim=True)
        there, shared = pairs.clamp(max=1), windows.negatives.shape[1]
        weight = there.expand(-1, -1, shared) * (self.config.negatives / shared)
        center, context = self._rates(windows, rate)
        shares, spread = seen * pairs.clamp(min=1).reciprocal_(), seen.mul_(center[windows.contexts][:, None])
        rates = context[windows.centers][..., None], context[windows.negatives][:, None]
        hits, misses = torch.empty_like(there), torch.empty_like(weight)
        ids = _parts(windows.centers, windows.contexts, windows.negatives)
        numbers = _parts(shares, spread, there, weight, hits, misses, *rates)
        for (words, around, noise), parts in zip(ids, numbers, strict=True):
            share, back, real, weights, hit, miss, own, other = parts
            given = torch.bmm(share, _rows(self.center, around))
            wanted, wrong = _rows(self.context, words), _rows(self.context, noise)
            torch.linalg.vecdot(given, wanted, out=hit[..., 0])
            torch.bmm(given, wrong.transpose(1, 2), out=miss)
            pull = hit.neg().sigmoid_().mul_(real)  # - d loss / d score
            push = miss.sigmoid().mul_(weights).neg_()
            _add(self.context, noise, torch.bmm((push * other).transpose(1, 2), given))
            _add(self.context, words, given.mul_(pull * own))
            _add(self.center, around, torch.bmm(back.transpose(1, 2), torch.baddbmm(wanted.mul_(pull), push, wrong)))
        return _dot(there, functional.softplus(-hits)) + _dot(weight, functional.softplus(misses))

    def _given(self, seen: Tensor, centers: Tensor, contexts: Tensor) -> tuple[Tensor, Tensor]:
        """Return the vector that predicts each word of a group, and its number of neighbors, a factor of the noise."""
        pairs = seen.sum(-1, keepdim=True).to(centers.dtype)
        if self.config.objective == "skip_gram":
            return centers, pairs
        return seen.to(centers.dtype) / pairs.clamp(min=1) @ contexts, pairs.clamp(max=1)

    def vectors(self, representation: str = "center") -> Table:
        """Return one row per word: "center", "context", their "mean", or their "concatenation" (twice as wide)."""
        choices: dict[str, Callable[[], Tensor]] = {
            "center": lambda: self.center,
            "context": lambda: self.context,
            "mean": lambda: (self.center + self.context) / 2,
            "concatenation": lambda: torch.cat((self.center, self.context), 1),
        }
        if representation not in choices:
            raise unknown_name_error("representation", representation, choices)
        return choices[representation]().detach()

    def cost(self, span: Span) -> Cost:
        """Return the cost of a dot product per source (`span.context`) and target (`span.time`)."""
        sources = 1 if self.config.objective == "cbow" else span.context or 1
        count = {"scores": span.tokens * sources * self.config.dim}
        return Cost(needed=count, executed=count) + parameters_only(self)


def _parts(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    return zip(*(tensor.split(GROUPS) for tensor in tensors), strict=True)


def _rows(table: Tensor, ids: Tensor) -> Tensor:
    return table.index_select(0, ids.flatten()).view(*ids.shape, -1)


def _dot(left: Tensor, right: Tensor) -> Tensor:
    return torch.dot(left.flatten(), right.flatten())


def _add(table: Tensor, ids: Tensor, change: Tensor) -> None:
    # scatter_add_ takes half the time of index_add_
    table.scatter_add_(0, ids.reshape(-1, 1).expand(-1, table.shape[1]), change.flatten(0, 1))
