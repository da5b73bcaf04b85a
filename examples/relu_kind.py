"""Somebody else's attention kind, in a file of its own: nothing of qkv is edited.

    qkv check --plugin examples.relu_kind --kind relu

A package would name this module in its entry-point group `qkv.attention` instead.
"""

import torch
from torch import Tensor

from qkv.attention import FeatureMap, register


@register("relu")
class Relu(FeatureMap):
    """Attention weighted by the dot product of relu(x) + 0.1."""

    backend = "auto"
    scale = None
    chunk = 5

    def similarity(self, q: Tensor, k: Tensor) -> Tensor:
        """The law."""
        return self.features(q) @ self.features(k).transpose(-1, -2)

    def features(self, x: Tensor) -> Tensor:
        """A little above zero, so that every query has something to average."""
        return torch.relu(x) + 0.1

    def feature_dim(self, key_dim: int) -> int:
        """As many as the key has numbers."""
        return key_dim

    def default_scale(self, key_dim: int) -> float:
        """The map sees the queries as they are."""
        return 1.0

    @classmethod
    def example(cls, key_dim: int) -> "Relu":
        """There is nothing to choose."""
        return cls()
