"""Sequences of different lengths as one tensor."""

from itertools import chain

import torch
from jaxtyping import Bool, Int64
from torch import Tensor


def pad(sequences: list[list[int]], value: int = 0) -> tuple[Int64[Tensor, "batch time"], Bool[Tensor, "batch time"]]:
    """The sequences as the first tokens of equally long rows, filled up with `value`; the mask is True at tokens."""
    lengths = torch.tensor([len(sequence) for sequence in sequences], dtype=torch.int64)
    longest = max(map(len, sequences), default=0)
    mask = torch.arange(longest) < lengths[:, None]
    rows = torch.full(mask.shape, value, dtype=torch.int64)
    rows[mask] = torch.tensor(list(chain.from_iterable(sequences)), dtype=torch.int64)
    return rows, mask
