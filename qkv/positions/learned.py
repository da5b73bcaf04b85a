"""Learned positions: one trained vector per position, added to the input.

Positions beyond `length` raise, and those beyond the longest training sequence stay untrained.
"""

import torch
from torch import nn

from qkv.positions.base import Positions, Sizes, check_index, register
from qkv.shapes import Hidden, Index


@register("learned")
class Learned(Positions):
    """A table of `length` vectors."""

    gives = frozenset({"input"})

    def __init__(self, dim: int, length: int):
        super().__init__()
        self.table = nn.Embedding(length, dim)
        nn.init.normal_(self.table.weight, std=0.02)

    @classmethod
    def from_sizes(cls, sizes: Sizes) -> "Learned":
        """Build one vector per position up to the longest sequence."""
        return cls(sizes.dim, sizes.length)

    def forward(self, x: Hidden, index: Index) -> Hidden:
        """Add the vectors of these positions to x."""
        check_index(x, index)
        # reading the index would synchronize a GPU; models check the length of their inputs themselves
        readable = index.device.type == "cpu" and not torch.compiler.is_compiling() and index.numel() > 0
        if readable and int(index.max()) >= self.table.num_embeddings:
            raise ValueError(
                f"position {int(index.max())} is beyond the {self.table.num_embeddings} learned positions; "
                "use a larger length, or sinusoidal, rope or alibi"
            )
        return x + self.table(index)
