"""Sequences of different lengths as one tensor."""

from collections.abc import Sequence
from itertools import chain

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

Padded = tuple[Int64[Tensor, "batch time"], Bool[Tensor, "batch time"]]


class Ragged:
    """Many sequences end to end in one tensor: any of them are padded rows in a moment, however many there are."""

    def __init__(self, sequences: Sequence[Sequence[int]]):
        self.lengths = torch.tensor([len(sequence) for sequence in sequences], dtype=torch.int64)
        self.starts = self.lengths.cumsum(0) - self.lengths
        # one more, for an empty sequence at the end to point to
        self.values = torch.tensor([*chain.from_iterable(sequences), 0], dtype=torch.int64)

    def rows(self, numbers: Sequence[int], value: int = 0) -> Padded:
        """These sequences at the start of equally long rows, filled up with `value`; the mask is True at tokens."""
        chosen = torch.tensor(numbers, dtype=torch.int64)
        lengths = self.lengths[chosen]
        places = torch.arange(int(lengths.max()) if len(lengths) else 0)
        mask = places < lengths[:, None]
        found = self.values[(self.starts[chosen][:, None] + places).clamp(max=len(self.values) - 1)]
        return found.masked_fill_(~mask, value), mask


def pad(sequences: Sequence[Sequence[int]], value: int = 0) -> Padded:
    """All of these sequences as padded rows, made without `Ragged`: for the few that are decoded one word at a time."""
    lengths = [len(sequence) for sequence in sequences]
    longest = max(lengths, default=0)
    filled = [[*sequence, *[value] * (longest - len(sequence))] for sequence in sequences]
    rows = torch.tensor(filled, dtype=torch.int64).view(len(filled), longest)
    if min(lengths, default=0) == longest:
        return rows, torch.ones_like(rows, dtype=torch.bool)
    return rows, torch.arange(longest) < torch.tensor(lengths)[:, None]
