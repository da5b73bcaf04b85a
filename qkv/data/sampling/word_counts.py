"""The words of a text and how often each occurs: what word vectors are trained for.

    kept(w)   = min(1, sqrt(t / f) + t / f),   f = the share of w among all words    (subsampling)
    noise(w) ~  count(w)^power                                                       (what is no neighbor)

Words are numbered from 0, the commonest first; there is no number for a word that is not there.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

_WORD = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")
_BLANK = re.compile(r"\n\s*\n")

Probabilities = Float64[Tensor, " words"]


def split_words(text: str) -> list[str]:
    """Letters and digits in a row, with apostrophes inside, in lower case."""
    return _WORD.findall(text.lower())


def paragraphs_of(documents: Iterable[str]) -> Iterator[list[str]]:
    """The words of each paragraph that has any; blank lines part them, and no window reaches beyond one."""
    for document in documents:
        for paragraph in _BLANK.split(document):
            words = split_words(paragraph)
            if words:
                yield words


@dataclass(frozen=True)
class WordCounts:
    """Words with their counts, the commonest first."""

    words: tuple[str, ...]
    counts: tuple[int, ...]
    _ids: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.words) != len(self.counts) or not self.words:
            raise ValueError(
                f"there must be a count for each word, and a word, got {len(self.words)} and {len(self.counts)}"
            )
        if min(self.counts) < 1:
            raise ValueError(f"counts must be at least 1, got {min(self.counts)}")
        ids = {word: number for number, word in enumerate(self.words)}
        if len(ids) != len(self.words):
            twice = next(word for number, word in enumerate(self.words) if ids[word] != number)
            raise ValueError(f"words must be different, got {twice!r} twice")
        object.__setattr__(self, "_ids", ids)

    @classmethod
    def build(cls, paragraphs: Iterable[Sequence[str]], least: int = 5) -> "WordCounts":
        """The words that occur at least so often; equally common ones in the order of their letters."""
        if least < 1:
            raise ValueError(f"least must be at least 1, got {least}")
        counted: Counter[str] = Counter()
        for paragraph in paragraphs:
            counted.update(paragraph)
        common = sorted((-count, word) for word, count in counted.items() if count >= least)
        if not common:
            raise ValueError(f"no word of the text occurs {least} times; it has {len(counted)} different words")
        return cls(tuple(word for _, word in common), tuple(-count for count, _ in common))

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self._ids

    def encode(self, words: Iterable[str]) -> list[int]:
        """The numbers of the words that are there; the others are left out, and their neighbors move together."""
        found = (self._ids.get(word, -1) for word in words)
        return [number for number in found if number >= 0]

    def kept(self, threshold: float) -> Probabilities:
        """How likely an occurrence of each word is to be trained on; a threshold of 0 keeps all."""
        if not 0 <= threshold < 1:
            raise ValueError(f"threshold must be at least 0 and below 1, got {threshold}")
        counts = torch.tensor(self.counts, dtype=torch.float64)
        ratio = threshold * counts.sum() / counts
        return (ratio.sqrt() + ratio).clamp(max=1) if threshold else torch.ones_like(counts)

    def noise(self, power: float) -> Probabilities:
        """How likely each word is to be drawn as one that is no neighbor."""
        weights = torch.tensor(self.counts, dtype=torch.float64) ** power
        return weights / weights.sum()

    def to_record(self) -> dict[str, Any]:
        """Plain data for a JSON file."""
        return {"words": list(self.words), "counts": list(self.counts)}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "WordCounts":
        """What `to_record` described."""
        words, counts = record.get("words"), record.get("counts")
        if not isinstance(words, list) or not isinstance(counts, list):
            raise ValueError(f"the record of word counts must have lists of words and counts, but has {sorted(record)}")
        return cls(tuple(words), tuple(counts))
