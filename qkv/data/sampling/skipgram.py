"""Words with their neighbors, and words that are none: what word vectors learn from.

    text -> numbered words -> subsampled -> groups of TOGETHER words in a row, each with a window of its own width
    and, for the whole group, SHARED words of noise

A group instead of single pairs: its scores are one matrix product, and few rows are read and written for it. What a
block of the text gives is a pure function of (seed, epoch, block), so a run can go on where it was stopped.
"""

from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int64
from torch import Tensor
from torch.nn.functional import pad

from qkv.data.sampling.word_counts import WordCounts
from qkv.random import derive_seed, uniforms

BLOCK = 1000
"""Words of the text that are drawn from together: the unit of the order."""
TOGETHER = 16
"""Words of a group: fewer waste less of a product on words that are no neighbors, more read fewer rows a word."""
SHARED = 16
"""Words of noise that a group shares; as many as it has words, or the noise is too much the same for all."""


class Windows(NamedTuple):
    """Groups of words, their surroundings, who sees whom, and noise."""

    words: Int64[Tensor, "groups together"]
    contexts: Int64[Tensor, "groups around"]
    """The words of the group and those within reach of it on both sides."""
    seen: Bool[Tensor, "groups together around"]
    """Whether a context is a neighbor of a word: near enough, in the same paragraph, and not the word itself."""
    noise: Int64[Tensor, "groups shared"]

    def part(self, start: int, end: int) -> "Windows":
        """Some of the groups."""
        return Windows(*(tensor[start:end] for tensor in self))


class WordWindows:
    """The windows of a text whose words stand in `counts`."""

    def __init__(self, paragraphs: Iterable[Sequence[str]], counts: WordCounts, *, window: int, threshold: float):
        if window < 1:
            raise ValueError(f"window must be at least 1, got {window}")
        words, places = array("i"), array("i")
        for number, paragraph in enumerate(paragraphs):
            ids = counts.encode(paragraph)
            words.extend(ids)
            places.extend([number] * len(ids))
        if not words:
            raise ValueError("the text has no word that is in counts")
        self.words, self.paragraphs = (torch.frombuffer(found, dtype=torch.int32) for found in (words, places))
        self.window = window
        self.blocks = -(-len(self.words) // BLOCK)
        """Blocks in the text; the last may be short."""
        self._kept = counts.kept(threshold)
        self._noise = counts.noise(0.75).cumsum(0)
        self._near = _table_of_reaches(window)

    def draw(self, ids: Sequence[int], seed: int) -> Windows:
        """The windows of block id % blocks in epoch id // blocks, for each of the ids."""
        numbers = (torch.tensor(ids, dtype=torch.int64)[:, None] * BLOCK + torch.arange(BLOCK)).flatten()
        places = numbers % (self.blocks * BLOCK)
        if int(places.max()) >= len(self.words):  # the last block is short
            there = (places < len(self.words)).nonzero()[:, 0]
            numbers, places = numbers.index_select(0, there), places.index_select(0, there)
        words = self.words.index_select(0, places)
        keep = (uniforms(derive_seed(seed, "subsampling"), numbers) < self._kept.index_select(0, words)).nonzero()[:, 0]
        if not len(keep):
            keep = torch.zeros(1, dtype=torch.int64)  # alone a word has no neighbor, and nothing is learned
        numbers, words, places = (found.index_select(0, keep) for found in (numbers, words, places))
        reach = 1 + (uniforms(derive_seed(seed, "windows"), numbers) * self.window).long()
        paragraphs = _count_runs(self.paragraphs.index_select(0, places), numbers // BLOCK)
        return self._group(words.long(), paragraphs, reach, self._draw_noise(numbers, seed))

    def _draw_noise(self, numbers: Tensor, seed: int) -> Tensor:
        """SHARED words for each group, by the numbers of its first words."""
        first = numbers[::TOGETHER, None] * SHARED + torch.arange(SHARED)
        drawn = uniforms(derive_seed(seed, "noise"), first)
        return torch.searchsorted(self._noise, drawn, right=True).clamp_(max=len(self._noise) - 1)

    def _group(self, words: Tensor, paragraphs: Tensor, reach: Tensor, noise: Tensor) -> Windows:
        missing, around = -len(words) % TOGETHER, TOGETHER + 2 * self.window
        words = pad(words, (0, missing))
        # those who only fill up have a reach of 0 and see nobody; nobody sees them, for they are in no paragraph
        paragraphs = pad(paragraphs, (0, missing), value=-1)
        reach = pad(reach, (0, missing))
        contexts = pad(words, (self.window, self.window)).unfold(0, around, TOGETHER)
        beside = pad(paragraphs, (self.window, self.window), value=-1).unfold(0, around, TOGETHER)
        near = self._near.index_select(0, reach * TOGETHER + torch.arange(len(reach)) % TOGETHER)
        seen = near.view(-1, TOGETHER, around) & (paragraphs.view(-1, TOGETHER, 1) == beside[:, None])
        return Windows(words.view(-1, TOGETHER), contexts.contiguous(), seen, noise)


def _count_runs(paragraphs: Tensor, rows: Tensor) -> Tensor:
    """The paragraphs as 0, 1, 2, ...; the same one in two blocks is two, for what is between may be missing."""
    changes = (paragraphs.diff() != 0) | (rows.diff() != 0)
    return pad(changes.cumsum(0, dtype=torch.int32), (1, 0))


def _table_of_reaches(window: int) -> Tensor:
    """(reach * TOGETHER + place, around): whom a word at this place of its group reaches; looked up, not compared."""
    around, place = torch.arange(TOGETHER + 2 * window), torch.arange(TOGETHER)[:, None]
    distance = (around - window - place).abs()
    return ((distance > 0) & (distance <= torch.arange(window + 1)[:, None, None])).flatten(0, 1)
