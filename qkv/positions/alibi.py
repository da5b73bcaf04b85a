"""ALiBi: far keys count less, by a fixed slope per head.

    bias(i, j) = -slope_h |i - j|,    slope_h = 2^(-8h/heads) for h = 1..heads, heads a power of two

For other head counts the slopes of the next lower power of two are filled up with every second one
of the next higher. A bias is a factor exp(-slope |i - j|) on the weight: so causal feature-map kinds
take the same slopes as a decay. Paper: https://arxiv.org/abs/2108.12409.
"""

import torch
from torch import Tensor

from qkv.positions.base import Positions, Sizes, register
from qkv.shapes import Bias, Decay, KeyIndex, Queries, QueryIndex


@register("alibi")
class Alibi(Positions):
    """A penalty that grows with distance; nothing is learned."""

    gives = frozenset({"bias", "decay"})
    relative = True

    def __init__(self, heads: int):
        super().__init__()
        if heads < 1:
            raise ValueError(f"heads must be at least 1, got {heads}")
        self.heads = heads

    @classmethod
    def fit(cls, sizes: Sizes) -> "Alibi":
        """A slope for each head."""
        return cls(sizes.heads)

    @property
    def slopes(self) -> Tensor:
        """Of each head, in float64; they follow from `heads`: nothing is kept for a cast or a meta device to spoil."""
        return _slopes(self.heads, torch.device("cpu"))

    def bias(self, q: Queries, query_index: QueryIndex, key_index: KeyIndex) -> Bias:
        """-slope * distance: (1, heads, queries, keys)."""
        distance = (query_index[:, None] - key_index).abs()
        return -self.decay(q)[:, None, None] * distance[None, None]

    def decay(self, q: Queries) -> Decay:
        """The slopes, in the type of the queries and where they are."""
        if q.shape[1] != self.heads:
            raise ValueError(f"q has {q.shape[1]} heads, but alibi was built for {self.heads}")
        return _slopes(self.heads, q.device).to(q.dtype)

    def extra_repr(self) -> str:
        """For how many heads."""
        return f"heads={self.heads}"


def _slopes(heads: int, device: torch.device) -> Tensor:
    """Made where they are wanted: a GPU would have to be waited for to be given them."""
    lower = 2 ** (heads.bit_length() - 1)
    step, more = 8 / lower, heads - lower
    slopes = _powers(-step, step, lower, device)
    return slopes if more == 0 else torch.cat((slopes, _powers(-step / 2, step, more, device)))


def _powers(first: float, step: float, count: int, device: torch.device) -> Tensor:
    """2^first, 2^(first - step), ..."""
    power: Tensor = 2.0 ** (first - step * torch.arange(count, dtype=torch.float64, device=device))
    return power
