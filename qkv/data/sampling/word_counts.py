"""Word counts of a text, the vocabulary of word vectors.

    P(keep w)     = min(1, sqrt(t / f) + t / f),   f = relative frequency of w    (subsampling)
    P(negative w) ~ count(w)^power                                                (negative sampling)

Ids start at 0 for the most frequent word; there is no id for unknown words.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from qkv.records import require_fields

_WORD = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")
_BLANK = re.compile(r"\n\s*\n")

Probabilities = Float64[Tensor, " words"]


def split_words(text: str) -> list[str]:
    """Return the words of a text in lower case: runs of letters and digits, with apostrophes inside."""
    return _WORD.findall(text.lower())


def split_paragraphs(documents: Iterable[str]) -> Iterator[list[str]]:
    """Yield the words of each non-empty paragraph; blank lines separate paragraphs, and no window crosses them."""
    for document in documents:
        for paragraph in _BLANK.split(document):
            words = split_words(paragraph)
            if words:
                yield words


@dataclass(frozen=True)
class WordCounts:
    """Words with their counts, the most frequent first."""

    words: tuple[str, ...]
    counts: tuple[int, ...]
    _ids: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.words) != len(self.counts) or not self.words:
            raise ValueError(
                f"words and counts must have the same length, at least 1, got {len(self.words)} and {len(self.counts)}"
            )
        if min(self.counts) < 1:
            raise ValueError(f"counts must be at least 1, got {min(self.counts)}")
        ids = {word: number for number, word in enumerate(self.words)}
        if len(ids) != len(self.words):
            repeated = next(word for number, word in enumerate(self.words) if ids[word] != number)
            raise ValueError(f"words must be distinct, got {repeated!r} twice")
        object.__setattr__(self, "_ids", ids)

    @classmethod
    def build(cls, paragraphs: Iterable[Sequence[str]], min_count: int = 5) -> "WordCounts":
        """Count words and keep those with at least `min_count` occurrences; ties are sorted alphabetically."""
        if min_count < 1:
            raise ValueError(f"min_count must be at least 1, got {min_count}")
        counted: Counter[str] = Counter()
        for paragraph in paragraphs:
            counted.update(paragraph)
        frequent = sorted((-count, word) for word, count in counted.items() if count >= min_count)
        if not frequent:
            raise ValueError(f"no word occurs {min_count} times; the text has {len(counted)} distinct words")
        return cls(tuple(word for _, word in frequent), tuple(-count for count, _ in frequent))

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self._ids

    def encode(self, words: Iterable[str]) -> list[int]:
        """Return the ids of known words; unknown words are dropped, so their neighbors become adjacent."""
        return [self._ids[word] for word in words if word in self._ids]

    def keep_probabilities(self, threshold: float) -> Probabilities:
        """Return the probability to keep an occurrence of each word when subsampling; a threshold of 0 keeps all."""
        if not 0 <= threshold < 1:
            raise ValueError(f"threshold must be at least 0 and below 1, got {threshold}")
        counts = torch.tensor(self.counts, dtype=torch.float64)
        ratio = threshold * counts.sum() / counts
        return (ratio.sqrt() + ratio).clamp(max=1) if threshold else torch.ones_like(counts)

    def negative_probabilities(self, power: float) -> Probabilities:
        """Return the probability of each word in negative sampling."""
        weights = torch.tensor(self.counts, dtype=torch.float64) ** power
        return weights / weights.sum()

    def to_record(self) -> dict[str, Any]:
        """Return plain data for a JSON file."""
        return {"words": list(self.words), "counts": list(self.counts)}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "WordCounts":
        """Build the counts that `to_record` returned."""
        require_fields(record, {"words": list[str], "counts": list[int]})
        return cls(tuple(record["words"]), tuple(record["counts"]))
