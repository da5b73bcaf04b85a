"""Shaw's relative positions: each query is also compared with a learned vector for the distance to the key.

    bias(i, j) = key_dim^-0.5 q_i . a_(j - i),    j - i clipped to -distance..distance

The vectors are shared by all heads. A bias that depends on the query does not factor through a
feature map, so it serves softmax alone. Paper: https://arxiv.org/abs/1803.02155 (its key half).
"""

import torch
from torch import Tensor, nn

from qkv.cost import Cost, Shape
from qkv.positions.base import Positions, Sizes, register
from qkv.shapes import Bias, KeyIndex, Queries, QueryIndex


@register("shaw")
class Shaw(Positions):
    """A table of 2 distance + 1 vectors."""

    gives = frozenset({"bias"})
    relative = True

    def __init__(self, key_dim: int, distance: int = 16):
        super().__init__()
        if key_dim < 1:
            raise ValueError(f"key_dim must be at least 1, got {key_dim}")
        if distance < 0:
            raise ValueError(f"distance must be at least 0, got {distance}")
        self.distance = distance
        self.table = nn.Parameter(torch.randn(2 * distance + 1, key_dim) * key_dim**-0.5)

    @classmethod
    def from_sizes(cls, sizes: Sizes) -> "Shaw":
        """Build vectors as wide as a key."""
        return cls(sizes.key_dim)

    @classmethod
    def role_for(cls, accepts: frozenset[str]) -> str | None:
        """Return "bias" if the mechanism takes biases and is a function of q.k, as this bias is."""
        return "bias" if {"bias", "rotation"} <= accepts else None

    def bias(self, q: Queries, query_index: QueryIndex, key_index: KeyIndex) -> Bias:
        """Return q . a at the distance of each pair: (batch, heads, queries, keys)."""
        if q.shape[-1] != self.table.shape[1]:
            raise ValueError(f"q has key_dim {q.shape[-1]}, but shaw was built for {self.table.shape[1]}")
        products: Tensor = q @ self.table.T.to(q.dtype) * q.shape[-1] ** -0.5  # batch heads queries distances
        offset = (key_index - query_index[:, None]).clamp(-self.distance, self.distance) + self.distance
        return products.gather(-1, offset.expand(*products.shape[:2], -1, -1))

    def cost(self, shape: Shape) -> Cost:
        """Return the product of every query with every vector of the table."""
        products = {"distances": shape.rows * shape.queries * self.table.numel()}
        return super().cost(shape) + Cost(needed=products, executed=products)
