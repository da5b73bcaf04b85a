"""Word vectors: two tables, learned by telling the neighbors of a word from noise (word2vec).

    skip_gram   score(w, c) = center_w . context_c                        for every neighbor c of w
    cbow        score(w)    = mean of center_c over neighbors c . context_w
    loss        sum over scores:  log(1 + e^-score)  +  negatives * mean over noise n of log(1 + e^score(., n))

A group of words shares its noise, so the mean is over more words than `negatives`, with the same expectation.
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
"""Groups that are computed from the same tables, which then change."""
LARGEST = 2.0
"""Learning rate times scores of one word between two changes; what goes beyond is held back, or it would diverge."""

Table = Float[Tensor, "words dim"]
Words = Int64[Tensor, "batch many"]
Scores = Float[Tensor, "batch sources targets"]


@dataclass(frozen=True)
class WordVectorsConfig:
    """How wide a vector is, and what is predicted from what."""

    dim: int = 100
    """Width of a vector."""
    objective: str = "skip_gram"
    """skip_gram: neighbors from a word; cbow: a word from the mean of its neighbors."""
    negatives: int = 5
    """Words of noise that each neighbor is told from."""

    def __post_init__(self) -> None:
        require_at_least(1, self, "dim", "negatives")
        if self.objective not in OBJECTIVES:
            raise unknown_name_error("objective", self.objective, OBJECTIVES)


@register("word_vectors", WordVectorsConfig)
class WordVectors(nn.Module):
    """A center vector and a context vector for each word."""

    def __init__(self, config: WordVectorsConfig, words: int):
        super().__init__()
        if words < 1:
            raise ValueError(f"words must be at least 1, got {words}")
        self.config = config
        # gensim's first vectors; those of word2vec, half as long, end with a higher loss of held-out text
        self.center = nn.Parameter((2 * torch.rand(words, config.dim) - 1) / config.dim)
        self.context = nn.Parameter(torch.zeros(words, config.dim))

    def forward(self, source: Words, target: Words) -> Scores:
        """The score of each target beside each source; of cbow, beside all sources at once: then sources = 1."""
        given = self.center[source]
        if self.config.objective == "cbow":
            given = given.mean(1, keepdim=True)
        return given @ self.context[target].transpose(1, 2)

    def loss(self, windows: SkipGramBatch) -> Tensor:
        """The definition: summed over neighbors, of cbow over words that have any."""
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
        """What the loss is summed over."""
        seen = windows.is_neighbor
        # the largest of bytes: as any(), in half its time
        return int(seen.view(torch.uint8).amax(-1).sum() if self.config.objective == "cbow" else seen.sum())

    @torch.no_grad()
    def update(self, windows: SkipGramBatch, rate: float) -> float:
        """Gradient descent on `loss`, GROUPS groups at a time; the sum of the losses as they were met.

        Only rows that occur are read and written: a gradient as large as the tables would take most of the time. As in
        word2vec, cbow gives its whole error to each neighbor, though each has but a share in the mean.
        """
        update = self._update_cbow if self.config.objective == "cbow" else self._update_skip_gram
        return float(update(windows, rate))

    def _rates(self, windows: SkipGramBatch, rate: float) -> Tensor:
        """(2, words): the rate of each row of center and context, lower than `rate` for very common words alone.

        One after the other, changes of the same row would see each other; together they overshoot where they are many.
        """
        groups = len(windows.centers)
        words, noise = (ids.flatten().bincount(minlength=len(self.center)) for ids in (windows.centers, windows.negatives))
        words, noise = words / windows.centers.numel(), self.config.negatives * noise / windows.negatives.numel()
        center = (1 + self.config.negatives) * words * int(windows.is_neighbor.sum())
        context = (words + noise) * self.count(windows)
        scores = torch.stack((center, context)) * (rate * min(GROUPS, groups) / groups)
        return rate * (LARGEST / scores).clamp_(max=1).to(self.center.dtype)

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
        """What each word of a group is scored by, and how many neighbors noise stands beside."""
        pairs = seen.sum(-1, keepdim=True).to(centers.dtype)
        if self.config.objective == "skip_gram":
            return centers, pairs
        return seen.to(centers.dtype) / pairs.clamp(min=1) @ contexts, pairs.clamp(max=1)

    def vectors(self, representation: str = "center") -> Table:
        """One row a word: "center", "context", their "mean", or their "concatenation", which is twice as wide."""
        made: dict[str, Callable[[], Tensor]] = {
            "center": lambda: self.center,
            "context": lambda: self.context,
            "mean": lambda: (self.center + self.context) / 2,
            "concatenation": lambda: torch.cat((self.center, self.context), 1),
        }
        if representation not in made:
            raise unknown_name_error("representation", representation, made)
        return made[representation]().detach()

    def cost(self, span: Span) -> Cost:
        """One product of two vectors for each source and target; `span.context` counts sources, `span.time` targets."""
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
    # scatter_add_ sorts the rows, and takes half the time of index_add_
    table.scatter_add_(0, ids.reshape(-1, 1).expand(-1, table.shape[1]), change.flatten(0, 1))
