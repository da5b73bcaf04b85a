"""Pairs of stretches of text for BERT's second question: does the one follow the other?

    [CLS] first stretch [SEP] second stretch [SEP]

Both are whole sentences of one document. Half of the time the second follows the first; else it comes from another
document. If the two are too long together, the first loses its beginning and the second its end, the longer one first.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from qkv.random import uniforms


@dataclass(frozen=True)
class Frame:
    """The signs around a pair, by id, and how long a row may be with them."""

    classify: int
    separator: int
    pad: int
    length: int

    def __post_init__(self) -> None:
        if self.length < 5:
            raise ValueError(f"length must be at least 5: [CLS] a [SEP] b [SEP], got {self.length}")


class Paired(NamedTuple):
    """Rows of pairs; `apart` is 1 where the second stretch is from elsewhere."""

    tokens: Int64[Tensor, "batch time"]
    segments: Int64[Tensor, "batch time"]
    mask: Bool[Tensor, "batch time"]
    apart: Int64[Tensor, " batch"]


class SentencePairs:
    """Documents of sentences of ids, from which pairs are drawn: which one is a function of a key and its number."""

    def __init__(self, documents: Iterable[Sequence[Sequence[int]]], frame: Frame):
        self.frame = frame
        flat, ends, lasts = array("i"), [0], [0]
        for document in documents:
            for sentence in document:
                if sentence:
                    flat.extend(sentence)
                    ends.append(len(flat))
            if len(ends) - 1 > lasts[-1]:
                lasts.append(len(ends) - 1)
        self.tokens = torch.frombuffer(flat, dtype=torch.int32) if flat else torch.zeros(0, dtype=torch.int32)
        """Of all sentences, one after the other."""
        self._offsets = torch.tensor(ends)  # sentence -> where it begins; one more for the end
        lengths = torch.tensor(lasts).diff()
        self._starts, self._ends = (
            torch.tensor(bounds).repeat_interleave(lengths) for bounds in (lasts[:-1], lasts[1:])
        )
        """Sentence -> the first sentence of its document, and the first of the next."""
        self._followed = (torch.arange(len(self._ends)) + 1 < self._ends).nonzero()[:, 0]
        if len(lengths) < 2 or not len(self._followed):
            raise ValueError(
                f"documents must be two or more, and one of two or more sentences; got {len(lengths)} of "
                f"{len(self._ends)} sentences in all"
            )

    @property
    def sentences(self) -> int:
        """Of all documents."""
        return len(self._ends)

    def draw(self, key: int, numbers: Int64[Tensor, " batch"]) -> Paired:
        """The pairs of these numbers."""
        room = self.frame.length - 3
        where, cut, fate, elsewhere = uniforms(key, numbers[:, None] * 4 + torch.arange(4)).unbind(1)
        first = self._followed[(where * len(self._followed)).long()]
        end = torch.maximum(self._until(first, room), first + 2)
        middle = first + 1 + (cut * (end - first - 1)).long()
        apart = fate < 0.5
        other = self._elsewhere(first, elsewhere)
        left = (room - (self._offsets[middle] - self._offsets[first])).clamp(min=1)
        second = torch.where(apart, other, middle)
        second_end = torch.where(apart, self._until(other, left), end)
        one = self._offsets[first], self._offsets[middle]
        two = self._offsets[second], self._offsets[second_end]
        return Paired(*self._write(one, two), apart.long())

    def _until(self, sentence: Tensor, room: Tensor | int) -> Tensor:
        """The sentence before which there are enough tokens from this one on, or its document ends."""
        enough = torch.searchsorted(self._offsets, self._offsets[sentence] + room)
        return torch.minimum(enough, self._ends[sentence])

    def _elsewhere(self, sentence: Tensor, chance: Tensor) -> Tensor:
        """Any sentence of another document."""
        start, size = self._starts[sentence], self._ends[sentence] - self._starts[sentence]
        found = (chance * (self.sentences - size)).long()
        return torch.where(found < start, found, found + size)

    def _write(self, one: tuple[Tensor, Tensor], two: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Rows, segments and mask of two stretches each, given by their beginnings and ends."""
        room = self.frame.length - 3
        before, after = one[1] - one[0], two[1] - two[0]
        before = torch.minimum(before, (room - after).clamp(min=room - room // 2))
        after = torch.minimum(after, room - before)
        place = torch.arange(int((before + after).max()) + 3 if len(before) else 0)
        a, b = (length[:, None] for length in (before, after))
        from_one, from_two = (place >= 1) & (place <= a), (place >= a + 2) & (place <= a + b + 1)
        source = torch.where(from_one, one[1][:, None] - a + place - 1, two[0][:, None] + place - a - 2)
        written = from_one | from_two
        rows = self.tokens[source.masked_fill(~written, 0)].long().masked_fill(~written, self.frame.pad)
        rows[:, :1] = self.frame.classify
        rows = rows.masked_fill((place == a + 1) | (place == a + b + 2), self.frame.separator)
        mask = place <= a + b + 2
        return rows, ((place >= a + 2) & mask).long(), mask
