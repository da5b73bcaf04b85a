"""The path around a layer, normed before the layer or after the sum.

A block is given the one it should use: `residual=partial(NormBefore, dim)`. Normed before, deep
models train without warm-up; normed after is the original Transformer.
"""

from collections.abc import Callable

from torch import Tensor, nn

from qkv.shapes import Hidden


class NormBefore(nn.Module):
    """x + layer(norm(x))"""

    def __init__(self, dim: int, dropout: float = 0.0, epsilon: float = 1e-5):
        super().__init__()
        self.norm = nn.LayerNorm(dim, eps=epsilon)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Hidden, layer: Callable[[Tensor], Tensor]) -> Hidden:
        """Around `layer`."""
        return x + self.dropout(layer(self.norm(x)))


class NormAfter(nn.Module):
    """norm(x + layer(x))"""

    def __init__(self, dim: int, dropout: float = 0.0, epsilon: float = 1e-5):
        super().__init__()
        self.norm = nn.LayerNorm(dim, eps=epsilon)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Hidden, layer: Callable[[Tensor], Tensor]) -> Hidden:
        """Around `layer`."""
        return self.norm(x + self.dropout(layer(x)))
