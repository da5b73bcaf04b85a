"""Linear attention: softmax attention with the exp dropped.

    output_i = sum_j (scale q_i.k_j) v_j = scale q_i' (sum_j k_j v_j'),    scale = key_dim^-0.5

A sum, not a mean: weights can be negative and their sum can be zero, so nothing is normalized.
Training needs a norm on the output (`MultiHead(output_norm=...)`); without one, accuracy stays at chance.
Paper: https://arxiv.org/abs/2006.16236 (with the identity as its map).
"""

from qkv.attention.base import check_backend, check_chunk, register
from qkv.attention.feature_map import FeatureMap
from qkv.attention.law import Law
from qkv.attention.triton.kinds import LINEAR
from qkv.shapes import Features, KernelMatrix, KeyRows, QueryRows, Vectors


@register("linear")
class Linear(FeatureMap):
    """Attention weighted by the dot product alone."""

    accepts = frozenset({"decay", "gate", "channel_gate", "rotation"})
    backends = (*FeatureMap.backends, "triton")
    triton = LINEAR
    normalizes = False

    def __init__(self, *, scale: float | None = None, chunk: int | None = None, backend: str = "auto"):
        super().__init__()
        self.scale = scale
        self.chunk = check_chunk(chunk)
        self.backend = check_backend("linear", backend, self.backends)

    def similarity(self, q: QueryRows, k: KeyRows) -> KernelMatrix:
        """Return q.k"""
        return q @ k.transpose(-1, -2)

    def features(self, x: Vectors) -> Features:
        """Return x: the feature map is the identity."""
        return x

    def feature_dim(self, key_dim: int) -> int:
        """Return key_dim."""
        return key_dim

    def default_scale(self, key_dim: int) -> float:
        """Return key_dim^-0.5."""
        return key_dim**-0.5

    def score_scale(self, key_dim: int) -> float:
        """Return `scale`; default: `default_scale`."""
        return self.default_scale(key_dim) if self.scale is None else float(self.scale)

    @property
    def law(self) -> Law:
        """The score itself."""
        return Law("no exp", "s", "This kind has no exp: the score is the unnormalized weight.")

    @classmethod
    def example(cls, key_dim: int) -> "Linear":
        """Build one with short chunks, so that short sequences have several."""
        return cls(chunk=5)
