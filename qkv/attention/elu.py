"""Elu attention: the positive feature map that made linear attention known.

    similarity(q, k) = phi(scale q) . phi(k),    phi(x) = elu(x) + 1,    scale = 1

phi(x) is x + 1 for x > 0 and exp(x) below: always positive, so the weights are a true mean.
It is a flat kernel: it tells keys apart poorly. Paper: https://arxiv.org/abs/2006.16236.
"""

from qkv.attention.base import check_backend, check_chunk, register
from qkv.attention.feature_map import FeatureMap
from qkv.shapes import Answering, Asking, Features, Similarities, Vectors


@register("elu")
class Elu(FeatureMap):
    """Attention weighted by the dot product of elu(x) + 1."""

    backends = (*FeatureMap.backends, "triton")

    def __init__(self, *, scale: float | None = None, chunk: int | None = None, backend: str = "auto"):
        super().__init__()
        self.scale = scale
        self.chunk = check_chunk(chunk)
        self.backend = check_backend("elu", backend, self.backends)

    def similarity(self, q: Asking, k: Answering) -> Similarities:
        """phi(q).phi(k)"""
        return self.features(q) @ self.features(k).transpose(-1, -2)

    def features(self, x: Vectors) -> Features:
        """elu(x) + 1, without the cancellation of adding 1 to almost -1, and with the slope 1 at 0 itself.

        Not below exp(-40) = 4e-18, so that a product of two features never vanishes in float32:
        a query far below zero then still has a mean to take, where a plain elu(x) + 1 gives 0 / 0.
        """
        return x.relu() + x.clamp(-40, 0).exp()  # at 0 the slope of relu is 0, that of a clamp would be 1

    def feature_dim(self, key_dim: int) -> int:
        """As many as the key has numbers."""
        return key_dim

    def default_scale(self, key_dim: int) -> float:
        """1: the map sees the queries as they are."""
        return 1.0

    @classmethod
    def example(cls, key_dim: int) -> "Elu":
        """Short chunks, so that short sequences have several."""
        return cls(chunk=5)
