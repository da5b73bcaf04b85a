"""ALiBi: far keys count less, by a fixed slope per head.

    bias(i, j) = -slope_h |i - j|,    slope_h = 2^(-8h/heads) for h = 1..heads, heads a power of two

For other head counts the slopes of the next lower power of two are filled up with every second one
of the next higher. A bias is a factor exp(-slope |i - j|) on the weight: so causal feature-map kinds
take the same slopes as a decay. Paper: https://arxiv.org/abs/2108.12409.
"""

from math import log2

import torch
from torch import Tensor

from qkv.positions.base import Positions, Sizes, register
from qkv.shapes import Bias, Decay, KeyIndex, Queries, QueryIndex


@register("alibi")
class Alibi(Positions):
    """A penalty that grows with distance; nothing is learned."""

    gives = frozenset({"bias", "decay"})
    relative = True
    slopes: Tensor

    def __init__(self, heads: int):
        super().__init__()
        self.register_buffer("slopes", torch.tensor(_slopes(heads)), persistent=False)

    @classmethod
    def fit(cls, sizes: Sizes) -> "Alibi":
        """A slope for each head."""
        return cls(sizes.heads)

    def bias(self, q: Queries, query_index: QueryIndex, key_index: KeyIndex) -> Bias:
        """-slope * distance: (1, heads, queries, keys)."""
        distance = (query_index[:, None] - key_index).abs()
        return -self.decay(q)[:, None, None] * distance[None, None]

    def decay(self, q: Queries) -> Decay:
        """The slopes, in the type of the queries."""
        if q.shape[1] != len(self.slopes):
            raise ValueError(f"q has {q.shape[1]} heads, but alibi was built for {len(self.slopes)}")
        return self.slopes.to(q.dtype)


def _slopes(heads: int) -> list[float]:
    lower = 2 ** int(log2(heads))
    slopes = [2 ** (-8 * h / lower) for h in range(1, lower + 1)]
    between = [2 ** (-8 * h / (2 * lower)) for h in range(1, 2 * lower + 1, 2)]
    return slopes + between[: heads - lower]
