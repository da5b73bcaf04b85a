"""Word vectors: nearest neighbors and analogies.

    nearest(w)          the x with the largest cosine(w, x)
    analogy(a, b, c)    a is to b as c is to the x with the largest  cosine(x, b/|b| - a/|a| + c/|c|)    (3CosAdd)

The query words themselves are never returned.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from qkv.errors import QkvError

ANALOGY_BATCH_SIZE = 512
"""Analogies per matrix product."""


class Neighbor(NamedTuple):
    """A word and its cosine similarity to the query."""

    word: str
    cosine: float


@dataclass(frozen=True)
class Vectors:
    """Words and their vectors, one row of `table` per word."""

    words: tuple[str, ...]
    table: Float[Tensor, "words dim"]
    _ids: dict[str, int] = field(init=False, repr=False, compare=False)
    _unit: Tensor = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.table.dim() != 2 or len(self.table) != len(self.words):
            raise ValueError(f"table must have {len(self.words)} rows, one per word, got {tuple(self.table.shape)}")
        object.__setattr__(self, "_ids", {word: number for number, word in enumerate(self.words)})
        object.__setattr__(self, "_unit", functional.normalize(self.table.float(), dim=1))

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self._ids

    def __getitem__(self, word: str) -> Tensor:
        """Return the vector of a word."""
        return self.table[self._find(word)]

    def cosine(self, left: str, right: str) -> float:
        """Return the cosine similarity of two words."""
        return float(self._unit[self._find(left)] @ self._unit[self._find(right)])

    def nearest(self, word: str, count: int = 10) -> list[Neighbor]:
        """Return the words nearest to this one, the nearest first."""
        index = self._find(word)
        return self._top(self._unit[index], [index], count)

    def analogy(self, first: str, second: str, third: str, count: int = 10) -> list[Neighbor]:
        """Return the words that complete "first is to second as third is to ...", the best first."""
        indices = [self._find(word) for word in (first, second, third)]
        a, b, c = self._unit[indices]
        return self._top(functional.normalize(b - a + c, dim=0), indices, count)

    def solve_analogies(self, analogies: Sequence[tuple[str, str, str]]) -> list[str]:
        """Return the best answer to each analogy, as `analogy` would."""
        answers: list[str] = []
        for start in range(0, len(analogies), ANALOGY_BATCH_SIZE):
            batch = analogies[start : start + ANALOGY_BATCH_SIZE]
            queries = torch.tensor([[self._find(word) for word in words] for words in batch])
            a, b, c = self._unit[queries].unbind(1)
            scores = (b - a + c) @ self._unit.T
            best = scores.scatter_(1, queries, -torch.inf).argmax(1).tolist()
            answers += [self.words[index] for index in best]
        return answers

    def _top(self, query: Tensor, excluded: Iterable[int], count: int) -> list[Neighbor]:
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count}")
        scores = self._unit @ query
        scores[list(excluded)] = -torch.inf
        left = len(self.words) - len(set(excluded))
        best = scores.topk(min(count, left))
        return [
            Neighbor(self.words[index], score)
            for index, score in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]

    def _find(self, word: str) -> int:
        """Return the row of a word; an unknown word raises QkvError with the nearest spelling."""
        if word in self._ids:
            return self._ids[word]
        if word.lower() in self._ids:
            return self._ids[word.lower()]
        near = get_close_matches(word.lower(), self.words, n=1, cutoff=0.6)
        raise QkvError(
            f"there is no vector for {word!r} among {len(self):,} words", nearest=repr(near[0]) if near else ""
        )
