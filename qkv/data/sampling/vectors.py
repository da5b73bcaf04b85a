"""Vectors by word: which are nearest, and which word completes an analogy.

    nearest(w)          the largest cosine(w, x)
    analogy(a, b, c)    a is to b as c is to the x with the largest  cosine(x, b/|b| - a/|a| + c/|c|)    (3CosAdd)

The words that were asked about are never the answer.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from qkv.storage import QkvError

TOGETHER = 512
"""Analogies that are solved at once."""


class Neighbor(NamedTuple):
    """A word and how near it is."""

    word: str
    cosine: float


@dataclass(frozen=True)
class Vectors:
    """Words, and a row of `table` for each."""

    words: tuple[str, ...]
    table: Float[Tensor, "words dim"]
    _ids: dict[str, int] = field(init=False, repr=False, compare=False)
    _unit: Tensor = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.table.dim() != 2 or len(self.table) != len(self.words):
            raise ValueError(f"table must have {len(self.words)} rows, one a word, got {tuple(self.table.shape)}")
        object.__setattr__(self, "_ids", {word: number for number, word in enumerate(self.words)})
        object.__setattr__(self, "_unit", functional.normalize(self.table.float(), dim=1))

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self._ids

    def __getitem__(self, word: str) -> Tensor:
        """The vector of a word."""
        return self.table[self._find(word)]

    def cosine(self, left: str, right: str) -> float:
        """How near two words are, from -1 to 1."""
        return float(self._unit[self._find(left)] @ self._unit[self._find(right)])

    def nearest(self, word: str, count: int = 10) -> list[Neighbor]:
        """The words nearest to this one, the nearest first."""
        number = self._find(word)
        return self._best(self._unit[number], [number], count)

    def analogy(self, first: str, second: str, third: str, count: int = 10) -> list[Neighbor]:
        """`first` is to `second` as `third` is to ...; the best answers first."""
        numbers = [self._find(word) for word in (first, second, third)]
        a, b, c = self._unit[numbers]
        return self._best(functional.normalize(b - a + c, dim=0), numbers, count)

    def solve(self, analogies: Sequence[tuple[str, str, str]]) -> list[str]:
        """The best answer to each, as `analogy` gives it."""
        answers: list[str] = []
        for start in range(0, len(analogies), TOGETHER):
            asked = analogies[start : start + TOGETHER]
            numbers = torch.tensor([[self._find(word) for word in words] for words in asked])
            a, b, c = self._unit[numbers].unbind(1)
            scores = (b - a + c) @ self._unit.T
            answers += [self.words[number] for number in scores.scatter_(1, numbers, -torch.inf).argmax(1).tolist()]
        return answers

    def _best(self, wanted: Tensor, asked: Iterable[int], count: int) -> list[Neighbor]:
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count}")
        scores = self._unit @ wanted
        scores[list(asked)] = -torch.inf
        left = len(self.words) - len(set(asked))
        best = scores.topk(min(count, left))
        return [
            Neighbor(self.words[n], score)
            for n, score in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]

    def _find(self, word: str) -> int:
        """The number of a word; one that is not there is an error that says the nearest spelling."""
        if word in self._ids:
            return self._ids[word]
        if word.lower() in self._ids:
            return self._ids[word.lower()]
        near = get_close_matches(word.lower(), self.words, n=1, cutoff=0.6)
        raise QkvError(
            f"there is no vector for {word!r} among {len(self):,} words", nearest=repr(near[0]) if near else ""
        )
