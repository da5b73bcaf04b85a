"""Residual connections: pre-norm, post-norm, or a scaled branch without a norm.

A block takes a factory: `residual=partial(PreNorm, dim)`. With pre-norm, deep models train without
warm-up; post-norm is the original Transformer. A `Dense` layer takes the module itself:
`residual=ScaledBranch(1 / depth)`.
"""

import math
from collections.abc import Callable

from torch import Tensor, nn

from qkv.shapes import Hidden


class _NormedResidual(nn.Module):
    """Norm and dropout of both normed residual connections."""

    def __init__(self, dim: int, dropout: float = 0.0, epsilon: float = 1e-5):
        super().__init__()
        self.norm = nn.LayerNorm(dim, eps=epsilon)
        self.dropout = nn.Dropout(dropout)


class PreNorm(_NormedResidual):
    """Pre-norm residual connection: x + layer(norm(x))."""

    def forward(self, x: Hidden, layer: Callable[[Tensor], Tensor]) -> Hidden:
        """Return x + layer(norm(x))."""
        return x + self.dropout(layer(self.norm(x)))


class PostNorm(_NormedResidual):
    """Post-norm residual connection: norm(x + layer(x))."""

    def forward(self, x: Hidden, layer: Callable[[Tensor], Tensor]) -> Hidden:
        """Return norm(x + layer(x))."""
        return self.norm(x + self.dropout(layer(x)))


class ScaledBranch(nn.Module):
    """Scaled residual connection: x + scale * layer(x).

    A layer whose Jacobian has spectral norm at most s gives a factor I + scale J, whose singular values are between
    1 - scale s and 1 + scale s. From layer 1 to layer L of a net there are L - 1 such factors, so with scale = 1 / L

        (1 - s/L)^(L-1)  <=  |gradient at layer 1| / |gradient at layer L|  <=  (1 + s/L)^(L-1)  <  e^s

    for any depth (the left side for s < L). With scale 1 the right side is (1 + s)^(L-1), and that is attained:
    a plain residual connection prevents vanishing gradients but lets them grow.
    """

    def __init__(self, scale: float = 1.0):
        super().__init__()
        if not 0 < scale < math.inf:
            raise ValueError(f"scale must be positive and finite, got {scale}")
        self.scale = scale

    def forward(self, x: Tensor, layer: Callable[[Tensor], Tensor]) -> Tensor:
        """Return x + scale * layer(x)."""
        return x + self.scale * layer(x)

    def extra_repr(self) -> str:
        """Return the scale."""
        return f"scale={self.scale:g}"
