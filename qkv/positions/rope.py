"""Rotary positions: queries and keys are turned by angles that grow with their place.

    (x_i, x_(i+d/2)) turned by the angle p / base^(2i/d),    base = 10000

The dot product of a query turned by p and a key turned by p' depends on p - p' alone, so it serves
every mechanism that is a function of q.k. Paper: https://arxiv.org/abs/2104.09864.
"""

import torch
from torch import Tensor

from qkv.positions.base import Positions, Sizes, check_index, register
from qkv.shapes import Index, Queries, QueryIndex


@register("rope")
class Rope(Positions):
    """Turns the first half of each head against the second."""

    gives = frozenset({"rotation"})
    relative = True

    def __init__(self, base: float = 10000.0):
        super().__init__()
        self.base = base

    @classmethod
    def fit(cls, sizes: Sizes) -> "Rope":
        """Nothing depends on the sizes."""
        return cls()

    def rotate(self, x: Queries, index: QueryIndex) -> Queries:
        """Queries or keys, each turned by the angles of its place."""
        if x.shape[-1] % 2:
            raise ValueError(f"rope turns pairs, so key_dim must be even, got {x.shape[-1]}")
        check_index(x, index)
        turn = angles(index, x.shape[-1], self.base)
        cosine, sine = turn.cos().to(x.dtype), turn.sin().to(x.dtype)
        left, right = x.chunk(2, -1)
        return torch.cat((left * cosine - right * sine, right * cosine + left * sine), -1)

    def extra_repr(self) -> str:
        """The base, if it is not the usual one."""
        return "" if self.base == 10000.0 else f"base={self.base}"


def angles(index: Index, dim: int, base: float) -> Tensor:
    """place / base^(2i/dim): (time, dim/2), in float64, since far places make large angles."""
    wave = torch.arange(0, dim, 2, device=index.device, dtype=torch.float64)
    return index[:, None] * base ** (-wave / dim)
