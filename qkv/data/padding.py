"""Sequences of different lengths as one tensor."""

from collections.abc import Sequence
from itertools import chain

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

Padded = tuple[Int64[Tensor, "batch time"], Bool[Tensor, "batch time"]]
"""(rows, mask); the mask is True at tokens and False on padding."""


class PackedSequences:
    """Sequences concatenated in one tensor, which makes padding any selection of them fast."""

    def __init__(self, sequences: Sequence[Sequence[int]]):
        self.lengths = torch.tensor([len(sequence) for sequence in sequences], dtype=torch.int64)
        self.starts = self.lengths.cumsum(0) - self.lengths
        # one extra value, so that the start of an empty last sequence is a valid index
        self.values = torch.tensor([*chain.from_iterable(sequences), 0], dtype=torch.int64)

    def pad(self, ids: Sequence[int], value: int = 0) -> Padded:
        """Return the sequences with these ids as rows padded on the right with `value`, and their mask."""
        chosen = torch.tensor(ids, dtype=torch.int64)
        lengths = self.lengths[chosen]
        positions = torch.arange(int(lengths.max()) if len(lengths) else 0)
        mask = positions < lengths[:, None]
        rows = self.values[(self.starts[chosen][:, None] + positions).clamp(max=len(self.values) - 1)]
        return rows.masked_fill_(~mask, value), mask


def pad(sequences: Sequence[Sequence[int]], value: int = 0) -> Padded:
    """Return all sequences as padded rows and their mask; for small batches, where `PackedSequences` does not pay."""
    lengths = [len(sequence) for sequence in sequences]
    longest = max(lengths, default=0)
    filled = [[*sequence, *[value] * (longest - len(sequence))] for sequence in sequences]
    rows = torch.tensor(filled, dtype=torch.int64).view(len(filled), longest)
    if min(lengths, default=0) == longest:
        return rows, torch.ones_like(rows, dtype=torch.bool)
    return rows, torch.arange(longest) < torch.tensor(lengths)[:, None]
