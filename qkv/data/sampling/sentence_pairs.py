"""Sentence pairs for BERT's next-sentence prediction: does the second segment follow the first?

    [CLS] first segment [SEP] second segment [SEP]

A segment is a run of whole sentences of one document. Half of the time the second follows the first, otherwise it comes
from another document. If both are too long together, the longer one is truncated first: the first segment at its start,
the second at its end.
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
class PairLayout:
    """Ids of the special tokens around a pair, and the maximum length of a row that includes them."""

    cls: int
    sep: int
    pad: int
    length: int

    def __post_init__(self) -> None:
        if self.length < 5:
            raise ValueError(f"length must be at least 5: [CLS] a [SEP] b [SEP], got {self.length}")


class SentencePairBatch(NamedTuple):
    """Rows of pairs; `is_random_next` is 1 where the second segment comes from another document."""

    tokens: Int64[Tensor, "batch time"]
    segments: Int64[Tensor, "batch time"]
    mask: Bool[Tensor, "batch time"]
    is_random_next: Int64[Tensor, " batch"]


class SentencePairs:
    """Sampler of pairs from tokenized sentences; each pair is a function of a key and its id."""

    def __init__(self, documents: Iterable[Sequence[Sequence[int]]], layout: PairLayout):
        self.layout = layout
        flat, ends, lasts = array("i"), [0], [0]
        for document in documents:
            for sentence in document:
                if sentence:
                    flat.extend(sentence)
                    ends.append(len(flat))
            if len(ends) - 1 > lasts[-1]:
                lasts.append(len(ends) - 1)
        self.tokens = torch.frombuffer(flat, dtype=torch.int32) if flat else torch.zeros(0, dtype=torch.int32)
        """Tokens of all sentences, concatenated."""
        self._offsets = torch.tensor(ends)  # sentence -> offset of its first token; one more for the end
        lengths = torch.tensor(lasts).diff()
        self._starts, self._ends = (
            torch.tensor(bounds).repeat_interleave(lengths) for bounds in (lasts[:-1], lasts[1:])
        )
        """Sentence -> the first sentence of its document, and of the next document."""
        self._has_next = (torch.arange(len(self._ends)) + 1 < self._ends).nonzero()[:, 0]
        if len(lengths) < 2 or not len(self._has_next):
            raise ValueError(
                f"documents must be at least two, one of them with at least two sentences, got {len(lengths)} with "
                f"{len(self._ends)} sentences in total"
            )

    @property
    def sentences(self) -> int:
        """Number of sentences of all documents."""
        return len(self._ends)

    def draw(self, key: int, pair_ids: Int64[Tensor, " batch"]) -> SentencePairBatch:
        """Return the pairs with these ids."""
        room = self.layout.length - 3
        start, boundary, coin, random_start = uniforms(key, pair_ids[:, None] * 4 + torch.arange(4)).unbind(1)
        first = self._has_next[(start * len(self._has_next)).long()]
        end = torch.maximum(self._segment_end(first, room), first + 2)
        middle = first + 1 + (boundary * (end - first - 1)).long()
        is_random = coin < 0.5
        other = self._draw_elsewhere(first, random_start)
        left = (room - (self._offsets[middle] - self._offsets[first])).clamp(min=1)
        second = torch.where(is_random, other, middle)
        second_end = torch.where(is_random, self._segment_end(other, left), end)
        a = self._offsets[first], self._offsets[middle]
        b = self._offsets[second], self._offsets[second_end]
        return SentencePairBatch(*self._build_rows(a, b), is_random.long())

    def _segment_end(self, sentence: Tensor, room: Tensor | int) -> Tensor:
        """Return the end (exclusive) of a segment from this sentence: `room` tokens reached, or end of document."""
        enough = torch.searchsorted(self._offsets, self._offsets[sentence] + room)
        return torch.minimum(enough, self._ends[sentence])

    def _draw_elsewhere(self, sentence: Tensor, random: Tensor) -> Tensor:
        """Draw any sentence of another document."""
        start, size = self._starts[sentence], self._ends[sentence] - self._starts[sentence]
        found = (random * (self.sentences - size)).long()
        return torch.where(found < start, found, found + size)

    def _build_rows(self, a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return rows, segment ids and mask of segments a and b, given as (start, end) token offsets."""
        room = self.layout.length - 3
        length_a, length_b = a[1] - a[0], b[1] - b[0]
        length_a = torch.minimum(length_a, (room - length_b).clamp(min=room - room // 2))
        length_b = torch.minimum(length_b, room - length_a)
        position = torch.arange(int((length_a + length_b).max()) + 3 if len(length_a) else 0)
        end_a = length_a[:, None] + 1  # position of the first [SEP]
        end_b = end_a + length_b[:, None] + 1  # and of the second
        in_a = (position >= 1) & (position < end_a)
        in_b = (position > end_a) & (position < end_b)
        source = torch.where(in_a, a[1][:, None] - end_a + position, b[0][:, None] + position - end_a - 1)
        is_text = in_a | in_b
        rows = self.tokens[source.masked_fill(~is_text, 0)].long().masked_fill(~is_text, self.layout.pad)
        rows[:, :1] = self.layout.cls
        rows = rows.masked_fill((position == end_a) | (position == end_b), self.layout.sep)
        mask = position <= end_b
        return rows, ((position > end_a) & mask).long(), mask
