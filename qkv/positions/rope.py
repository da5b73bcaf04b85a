"""Rotary positions (RoPE): queries and keys are rotated by angles proportional to their position.

    (x_i, x_(i+d/2)) rotated by the angle p / base^(2i/d),    base = 10000

The dot product of a query at p and a key at p' depends on p - p' alone, so it serves
every mechanism that is a function of q.k. Paper: https://arxiv.org/abs/2104.09864.
"""

import torch
from torch import Tensor

from qkv.positions.base import Positions, Sizes, check_index, register
from qkv.shapes import Index, Queries, QueryIndex


@register("rope")
class Rope(Positions):
    """Rotation of the first half of each head against the second."""

    gives = frozenset({"rotation"})
    relative = True

    def __init__(self, base: float = 10000.0):
        super().__init__()
        self.base = base

    @classmethod
    def from_sizes(cls, sizes: Sizes) -> "Rope":
        """Build one with the default base; nothing depends on the sizes."""
        return cls()

    def rotate(self, x: Queries, index: QueryIndex) -> Queries:
        """Rotate queries or keys by the angles of their positions."""
        if x.shape[-1] % 2:
            raise ValueError(f"rope rotates pairs, so key_dim must be even, got {x.shape[-1]}")
        check_index(x, index)
        angle = rotary_angles(index, x.shape[-1], self.base)
        if index.dim() == 2:
            angle = angle.unflatten(0, (-1, *(1,) * (x.dim() - 3)))  # [batch, 1, time, dim / 2]
        cosine, sine = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        left, right = x.chunk(2, -1)
        return torch.cat((left * cosine - right * sine, right * cosine + left * sine), -1)

    def extra_repr(self) -> str:
        """Return the base, if it is not the default."""
        return "" if self.base == 10000.0 else f"base={self.base}"


def rotary_angles(index: Index, dim: int, base: float) -> Tensor:
    """Return position / base^(2i/dim): (..., time, dim/2), in float64, since far positions give large angles."""
    wave = torch.arange(0, dim, 2, device=index.device, dtype=torch.float64)
    return index[..., None] * base ** (-wave / dim)
