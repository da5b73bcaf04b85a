"""ALiBi: a linear penalty on distance, with a fixed slope per head.

    bias(i, j) = -slope_h |i - j|,    slope_h = 2^(-8h/heads) for h = 1..heads, heads a power of two

For other head counts, the slopes of the next lower power of two are completed with every second slope
of the next higher. The bias is a factor exp(-slope |i - j|) of the weight, so causal feature-map kinds
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
    def from_sizes(cls, sizes: Sizes) -> "Alibi":
        """Build one slope per head."""
        return cls(sizes.heads)

    @property
    def slopes(self) -> Tensor:
        """Slope of each head in float64. Computed on each access, so a cast of the module does not round them."""
        return _make_slopes(self.heads, torch.device("cpu"))

    def bias(self, q: Queries, query_index: QueryIndex, key_index: KeyIndex) -> Bias:
        """Return -slope * distance: (1, heads, queries, keys)."""
        distance = (query_index[:, None] - key_index).abs()
        return -self.decay(q)[:, None, None] * distance[None, None]

    def decay(self, q: Queries) -> Decay:
        """Return the slopes in the dtype and on the device of the queries."""
        if q.shape[1] != self.heads:
            raise ValueError(f"q has {q.shape[1]} heads, but alibi was built for {self.heads}")
        return _make_slopes(self.heads, q.device).to(q.dtype)

    def extra_repr(self) -> str:
        """Return the number of heads."""
        return f"heads={self.heads}"


def _make_slopes(heads: int, device: torch.device) -> Tensor:
    """Compute the slopes on `device`: a copy from the host would wait for the GPU."""
    lower = 2 ** (heads.bit_length() - 1)
    step, missing = 8 / lower, heads - lower
    slopes = _powers_of_two(-step, step, lower, device)
    return slopes if missing == 0 else torch.cat((slopes, _powers_of_two(-step / 2, step, missing, device)))


def _powers_of_two(first: float, step: float, count: int, device: torch.device) -> Tensor:
    """Return 2^first, 2^(first - step), ..."""
    power: Tensor = 2.0 ** (first - step * torch.arange(count, dtype=torch.float64, device=device))
    return power
