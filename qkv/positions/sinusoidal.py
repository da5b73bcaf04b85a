"""Sinusoidal positions: fixed sine and cosine waves added to the input.

    PE(p, 2i) = sin(p / base^(2i/dim)),    PE(p, 2i+1) = cos(p / base^(2i/dim)),    base = 10000

PE(p + k) is a fixed rotation of PE(p), whatever p. Paper: https://arxiv.org/abs/1706.03762.
"""

import torch
from torch import Tensor

from qkv.positions.base import Positions, Sizes, check_index, register
from qkv.positions.rope import rotary_angles
from qkv.shapes import Hidden, Index


@register("sinusoidal")
class Sinusoidal(Positions):
    """Waves of geometrically growing length; nothing is learned."""

    gives = frozenset({"input"})

    def __init__(self, dim: int, base: float = 10000.0):
        super().__init__()
        if dim % 2:
            raise ValueError(f"dim must be even (a sine and a cosine for each wave), got {dim}")
        self.dim = dim
        self.base = base

    @classmethod
    def from_sizes(cls, sizes: Sizes) -> "Sinusoidal":
        """Build waves as wide as the model."""
        return cls(sizes.dim)

    def encode(self, index: Index, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the position encoding itself: (time, dim)."""
        angle = rotary_angles(index, self.dim, self.base)
        return torch.stack((angle.sin(), angle.cos()), -1).flatten(-2).to(dtype)

    def forward(self, x: Hidden, index: Index) -> Hidden:
        """Add the waves of these positions to x."""
        if x.shape[-1] != self.dim:
            raise ValueError(f"x has dim {x.shape[-1]}, but these positions were built for {self.dim}")
        check_index(x, index)
        return x + self.encode(index, x.dtype)
