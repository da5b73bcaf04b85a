"""Elu attention: linear attention with the positive feature map of its first paper.

    similarity(q, k) = phi(scale q) . phi(k),    phi(x) = elu(x) + 1,    scale = 1

phi(x) is x + 1 for x > 0 and exp(x) below: always positive, so the output is a true mean.
The kernel is flat, so it separates keys poorly. Paper: https://arxiv.org/abs/2006.16236.
"""

from dataclasses import replace

from qkv.attention.base import check_backend, check_chunk, register
from qkv.attention.feature_map import FeatureMap
from qkv.attention.law import Law
from qkv.attention.triton.kinds import ELU
from qkv.shapes import Features, KernelMatrix, KeyRows, QueryRows, Vectors


@register("elu")
class Elu(FeatureMap):
    """Attention weighted by the dot product of elu(x) + 1."""

    backends = (*FeatureMap.backends, "triton")
    triton = ELU

    def __init__(self, *, scale: float | None = None, chunk: int | None = None, backend: str = "auto"):
        super().__init__()
        self.scale = scale
        self.chunk = check_chunk(chunk)
        self.backend = check_backend("elu", backend, self.backends)

    def similarity(self, q: QueryRows, k: KeyRows) -> KernelMatrix:
        """Return phi(q).phi(k)"""
        return self.features(q) @ self.features(k).transpose(-1, -2)

    def features(self, x: Vectors) -> Features:
        """Return elu(x) + 1, without the cancellation of adding 1 to almost -1, and with slope 1 at 0.

        Clamped at exp(-40) = 4e-18, so that a product of two features never underflows in float32:
        plain elu(x) + 1 gives 0 / 0 for queries far below zero.
        """
        return x.relu() + x.clamp(-40, 0).exp()  # at 0 relu has slope 0, where clamp(min=0) would have 1

    def feature_dim(self, key_dim: int) -> int:
        """Return key_dim."""
        return key_dim

    def default_scale(self, key_dim: int) -> float:
        """Return 1: the feature map takes the queries unscaled."""
        return 1.0

    @property
    def law(self) -> Law:
        """A dot product of elu + 1."""
        note = "This kind compares features of the query and of the keys: elu + 1."
        return replace(super().law, vector_note=note)

    @classmethod
    def example(cls, key_dim: int) -> "Elu":
        """Build one with short chunks, so that short sequences have several."""
        return cls(chunk=5)
