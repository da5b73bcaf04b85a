"""Learned positions: one trained vector per place, added to the input.

There are none beyond `length`, and none of use beyond the longest sequence trained on.
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
    def fit(cls, sizes: Sizes) -> "Learned":
        """A vector for every place up to the longest sequence."""
        return cls(sizes.dim, sizes.length)

    def forward(self, x: Hidden, index: Index) -> Hidden:
        """x with the vectors of its places added."""
        check_index(x, index)
        # a GPU would have to finish all it was given before it could be asked; models refuse long inputs themselves
        look = index.device.type == "cpu" and not torch.compiler.is_compiling() and index.numel() > 0
        if look and int(index.max()) >= self.table.num_embeddings:
            raise ValueError(
                f"place {int(index.max())} is beyond the {self.table.num_embeddings} learned positions; "
                "build them longer, or use sinusoidal, rope or alibi"
            )
        return x + self.table(index)
