"""Linear attention: softmax attention with the exp dropped.

    output_i = sum_j (scale q_i.k_j) v_j = scale q_i' (sum_j k_j v_j'),    scale = key_dim^-0.5

A sum, not a mean: the weights may be negative and their sum may be zero, so nothing is divided.
Training needs a norm on the output (`MultiHead(output_norm=...)`): without one it stays at chance.
Paper: https://arxiv.org/abs/2006.16236 (with the identity as its map).
"""

from qkv.attention.base import check_backend, check_chunk, register
from qkv.attention.feature_map import FeatureMap
from qkv.shapes import Answering, Asking, Features, Similarities, Vectors


@register("linear")
class Linear(FeatureMap):
    """Attention weighted by the bare dot product."""

    accepts = frozenset({"decay", "rotation"})
    backends = (*FeatureMap.backends, "triton")
    normalizes = False

    def __init__(self, *, scale: float | None = None, chunk: int | None = None, backend: str = "auto"):
        super().__init__()
        self.scale = scale
        self.chunk = check_chunk(chunk)
        self.backend = check_backend("linear", backend, self.backends)

    def similarity(self, q: Asking, k: Answering) -> Similarities:
        """q.k"""
        return q @ k.transpose(-1, -2)

    def features(self, x: Vectors) -> Features:
        """The identity."""
        return x

    def feature_dim(self, key_dim: int) -> int:
        """As many as the key has numbers."""
        return key_dim

    def default_scale(self, key_dim: int) -> float:
        """key_dim^-0.5"""
        return key_dim**-0.5

    @classmethod
    def example(cls, key_dim: int) -> "Linear":
        """Short chunks, so that short sequences have several."""
        return cls(chunk=5)
