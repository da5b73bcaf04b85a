"""Attention by squared features, as an example of a kind: w(q, k) = (q^2 + 1).(k^2 + 1), normalized."""

from torch import Tensor

from qkv.attention.base import register
from qkv.attention.feature_map import FeatureMap


@register("squared")
class Squared(FeatureMap):
    """Weights from dot products of x^2 + 1."""

    backend = "auto"
    scale = None
    chunk = 5

    def similarity(self, q: Tensor, k: Tensor) -> Tensor:
        """Return the weights before normalization."""
        return self.features(q) @ self.features(k).transpose(-1, -2)

    def features(self, x: Tensor) -> Tensor:
        """Return x^2 + 1."""
        return x.square() + 1

    def feature_dim(self, key_dim: int) -> int:
        """Return key_dim."""
        return key_dim

    def default_scale(self, key_dim: int) -> float:
        """Return 1."""
        return 1.0
