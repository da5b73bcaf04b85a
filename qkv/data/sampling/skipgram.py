"""Training examples for word2vec: center words, their context words, and negative samples.

    text -> word ids -> subsampling -> groups of GROUP_SIZE consecutive words, each word with its own window size,
    and NEGATIVES_PER_GROUP negative samples per group

Groups replace single pairs: the scores of a group are one matrix product, and it reads and writes few embedding rows.
The examples of a block are a pure function of (seed, epoch, block), so a run can resume anywhere.
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

BLOCK_SIZE = 1000
"""Words per block, the unit that training shuffles."""
GROUP_SIZE = 16
"""Center words per group: small groups waste fewer products on non-neighbors, large ones read fewer rows per word."""
NEGATIVES_PER_GROUP = 16
"""Negative samples that a group shares; with fewer than its words, they would be too similar for all of them."""


class SkipGramBatch(NamedTuple):
    """Groups of center words, their context words, and negative samples."""

    centers: Int64[Tensor, "groups centers"]
    contexts: Int64[Tensor, "groups contexts"]
    """Words of the group and `window` words on both sides."""
    is_neighbor: Bool[Tensor, "groups centers contexts"]
    """Whether a context is a neighbor of a center: within its window, in the same paragraph, not the word itself."""
    negatives: Int64[Tensor, "groups negatives"]

    def slice_groups(self, start: int, end: int) -> "SkipGramBatch":
        """Return the groups [start, end)."""
        return SkipGramBatch(*(tensor[start:end] for tensor in self))


class SkipGramSampler:
    """Sampler of skip-gram groups from a text; words that are not in `counts` are dropped."""

    def __init__(self, paragraphs: Iterable[Sequence[str]], counts: WordCounts, *, window: int, threshold: float):
        if window < 1:
            raise ValueError(f"window must be at least 1, got {window}")
        words, paragraph_ids = array("i"), array("i")
        for number, paragraph in enumerate(paragraphs):
            ids = counts.encode(paragraph)
            words.extend(ids)
            paragraph_ids.extend([number] * len(ids))
        if not words:
            raise ValueError("the text has no word that is in counts")
        self.words = torch.frombuffer(words, dtype=torch.int32)
        self.paragraphs = torch.frombuffer(paragraph_ids, dtype=torch.int32)
        self.window = window
        self.block_count = -(-len(self.words) // BLOCK_SIZE)
        """Number of blocks; the last may be short."""
        self._keep = counts.keep_probabilities(threshold)
        self._negatives = counts.negative_probabilities(0.75).cumsum(0)
        self._in_window = _window_table(window)

    def draw(self, ids: Sequence[int], seed: int) -> SkipGramBatch:
        """Return the groups of block id % block_count in epoch id // block_count, for each id."""
        # a counter numbers an occurrence of a word over all epochs; an offset is its position in the text
        counters = (torch.tensor(ids, dtype=torch.int64)[:, None] * BLOCK_SIZE + torch.arange(BLOCK_SIZE)).flatten()
        offsets = counters % (self.block_count * BLOCK_SIZE)
        if int(offsets.max()) >= len(self.words):  # the last block is short
            valid = (offsets < len(self.words)).nonzero()[:, 0]
            counters, offsets = counters.index_select(0, valid), offsets.index_select(0, valid)
        words = self.words.index_select(0, offsets)
        is_kept = uniforms(derive_seed(seed, "subsampling"), counters) < self._keep.index_select(0, words)
        kept = is_kept.nonzero()[:, 0]
        if not len(kept):
            kept = torch.zeros(1, dtype=torch.int64)  # a single word has no neighbor, so nothing is learned
        counters, words, offsets = (values.index_select(0, kept) for values in (counters, words, offsets))
        window = 1 + (uniforms(derive_seed(seed, "windows"), counters) * self.window).long()
        paragraphs = _number_runs(self.paragraphs.index_select(0, offsets), counters // BLOCK_SIZE)
        return self._group(words.long(), paragraphs, window, self._draw_negatives(counters, seed))

    def _draw_negatives(self, counters: Tensor, seed: int) -> Tensor:
        """Draw NEGATIVES_PER_GROUP words per group, by the counter of its first word."""
        first = counters[::GROUP_SIZE, None] * NEGATIVES_PER_GROUP + torch.arange(NEGATIVES_PER_GROUP)
        random = uniforms(derive_seed(seed, "noise"), first)
        return torch.searchsorted(self._negatives, random, right=True).clamp_(max=len(self._negatives) - 1)

    def _group(self, words: Tensor, paragraphs: Tensor, window: Tensor, negatives: Tensor) -> SkipGramBatch:
        missing, width = -len(words) % GROUP_SIZE, GROUP_SIZE + 2 * self.window
        words = pad(words, (0, missing))
        # padding has window 0, so it has no neighbors, and paragraph -1, so it is no neighbor
        paragraphs = pad(paragraphs, (0, missing), value=-1)
        window = pad(window, (0, missing))
        contexts = pad(words, (self.window, self.window)).unfold(0, width, GROUP_SIZE)  # [groups, width]
        context_paragraphs = pad(paragraphs, (self.window, self.window), value=-1).unfold(0, width, GROUP_SIZE)
        in_window = self._in_window.index_select(0, window * GROUP_SIZE + torch.arange(len(window)) % GROUP_SIZE)
        same_paragraph = paragraphs.view(-1, GROUP_SIZE, 1) == context_paragraphs[:, None]
        is_neighbor = in_window.view(-1, GROUP_SIZE, width) & same_paragraph
        return SkipGramBatch(words.view(-1, GROUP_SIZE), contexts.contiguous(), is_neighbor, negatives)


def _number_runs(paragraphs: Tensor, rows: Tensor) -> Tensor:
    """Renumber paragraphs as 0, 1, 2, ...; one that spans two blocks becomes two, since text between may be missing."""
    changes = (paragraphs.diff() != 0) | (rows.diff() != 0)
    return pad(changes.cumsum(0, dtype=torch.int32), (1, 0))


def _window_table(window: int) -> Tensor:
    """Return the lookup table [own window * GROUP_SIZE + index in group, context]: whether it is in the window."""
    context, index = torch.arange(GROUP_SIZE + 2 * window), torch.arange(GROUP_SIZE)[:, None]
    distance = (context - window - index).abs()
    return ((distance > 0) & (distance <= torch.arange(window + 1)[:, None, None])).flatten(0, 1)
