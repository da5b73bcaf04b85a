"""An attention kind outside of qkv, in one file.

    python -m examples.relu_kind                            # the largest error of each check
    qkv check --plugin examples.relu_kind --kind relu

A package would name this module in its entry-point group `qkv.attention` instead.
"""

import torch
from torch import Tensor

from qkv.attention import FeatureMap, check, register


@register("relu")
class Relu(FeatureMap):
    """Attention weighted by the dot product of relu(x) + 0.1."""

    backend = "auto"
    scale = None
    chunk = 5

    def similarity(self, q: Tensor, k: Tensor) -> Tensor:
        """Return the weights before normalization: the definition."""
        return self.features(q) @ self.features(k).transpose(-1, -2)

    def features(self, x: Tensor) -> Tensor:
        """Return features above zero, so that every normalizer is positive."""
        return torch.relu(x) + 0.1

    def feature_dim(self, key_dim: int) -> int:
        """Return the number of features: that of the key."""
        return key_dim

    def default_scale(self, key_dim: int) -> float:
        """Return 1: queries are not scaled."""
        return 1.0

    @classmethod
    def example(cls, key_dim: int) -> "Relu":
        """Return an instance; there are no options."""
        return cls()


if __name__ == "__main__":
    for result in check(Relu()):
        print(f"{'ok' if result.ok else 'FAILED':7}{result.error:9.1e}  at most {result.bound:.0e}  {result.identity}")
