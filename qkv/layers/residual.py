"""The path around a layer: normed before the layer, normed after the sum, or not normed and the layer scaled.

A block is given the one it should use: `residual=partial(NormBefore, dim)`. Normed before, deep
models train without warm-up; normed after is the original Transformer. A `Dense` layer is given
the path itself: `residual=ScaledBranch(1 / depth)`.
"""

import math
from collections.abc import Callable

from torch import Tensor, nn

from qkv.shapes import Hidden


class _Normed(nn.Module):
    """What both normed paths have: a norm, and dropout on what the layer adds."""

    def __init__(self, dim: int, dropout: float = 0.0, epsilon: float = 1e-5):
        super().__init__()
        self.norm = nn.LayerNorm(dim, eps=epsilon)
        self.dropout = nn.Dropout(dropout)


class NormBefore(_Normed):
    """x + layer(norm(x))"""

    def forward(self, x: Hidden, layer: Callable[[Tensor], Tensor]) -> Hidden:
        """Around `layer`."""
        return x + self.dropout(layer(self.norm(x)))


class NormAfter(_Normed):
    """norm(x + layer(x))"""

    def forward(self, x: Hidden, layer: Callable[[Tensor], Tensor]) -> Hidden:
        """Around `layer`."""
        return self.norm(x + self.dropout(layer(x)))


class ScaledBranch(nn.Module):
    """x + share * layer(x)

    A layer whose Jacobian has spectral norm at most s gives a factor I + share J, whose singular values lie between
    1 - share s and 1 + share s. From layer 1 to layer L of a net there are L - 1 such factors, so with share = 1 / L

        (1 - s/L)^(L-1)  <=  |gradient at layer 1| / |gradient at layer L|  <=  (1 + s/L)^(L-1)  <  e^s

    however deep the net is (the left side for s < L). With share 1 the right side is (1 + s)^(L-1), and it is reached:
    adding the input alone keeps a gradient alive but lets it grow.
    """

    def __init__(self, share: float = 1.0):
        super().__init__()
        if not 0 < share < math.inf:
            raise ValueError(f"share must be more than 0 and finite, got {share}")
        self.share = share

    def forward(self, x: Tensor, layer: Callable[[Tensor], Tensor]) -> Tensor:
        """Around `layer`."""
        return x + self.share * layer(x)

    def extra_repr(self) -> str:
        """The share, for print."""
        return f"share={self.share:g}"
