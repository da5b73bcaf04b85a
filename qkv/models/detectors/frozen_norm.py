"""A convolution with frozen batch normalization, computed as one convolution.

Statistics and affine parameters are constants, so that normalization is a factor of the weight and a bias:

    norm(conv(x, w)) = conv(x, w * s) + (bias - mean * s)      s = scale / sqrt(variance + eps)
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

EPS = 1e-3

FeatureMap = Float[Tensor, "batch channels height width"]


class FrozenNorm(nn.Module):
    """Batch normalization with fixed statistics and fixed affine parameters, in training too."""

    mean: Tensor
    variance: Tensor

    def __init__(self, channels: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels), requires_grad=False)
        self.bias = nn.Parameter(torch.zeros(channels), requires_grad=False)
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("variance", torch.ones(channels))

    def forward(self, x: FeatureMap) -> FeatureMap:
        """Return the normalized map, as `torch.nn.BatchNorm2d` does in evaluation mode."""
        return functional.batch_norm(x, self.mean, self.variance, self.weight, self.bias, eps=EPS)

    def factor_and_shift(self) -> tuple[Float[Tensor, " channels"], Float[Tensor, " channels"]]:
        """Return normalization as a factor and a shift of each channel."""
        factor = self.weight * (self.variance + EPS).rsqrt()
        return factor, self.bias - self.mean * factor


class NormedConvolution(nn.Module):
    """A convolution with TensorFlow's "same" padding and frozen batch normalization; no bias of its own.

    The map has ceil(size / stride) cells. Padding is split evenly; an odd cell goes to the bottom and to the right.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, *, stride: int = 1, groups: int = 1):
        super().__init__()
        self.kernel, self.stride, self.groups = kernel, stride, groups
        self.weight = nn.Parameter(torch.empty(outputs, inputs // groups, kernel, kernel))
        self.norm = FrozenNorm(outputs)
        self._folded: tuple[list[Any], tuple[Tensor, Tensor]] | None = None

    def forward(self, x: FeatureMap) -> FeatureMap:
        """Return the convolution with the normalization folded into its weight."""
        weight, bias = self.fold(x)
        x, padding = self.pad(x)
        return functional.conv2d(x, weight, bias, self.stride, padding, groups=self.groups)

    def plain(self, x: FeatureMap) -> FeatureMap:
        """Return the convolution and then the normalization: the law that `forward` is tested against."""
        x, padding = self.pad(x)
        return self.norm(functional.conv2d(x, self.weight, None, self.stride, padding, groups=self.groups))

    def pad(self, x: FeatureMap) -> tuple[FeatureMap, tuple[int, int]]:
        """Return x and the padding that the convolution adds at both sides; x is padded only where they differ."""
        height, width = (same_padding(size, self.kernel, self.stride) for size in x.shape[2:])
        if height % 2 == 0 and width % 2 == 0:
            return x, (height // 2, width // 2)
        return functional.pad(x, (width // 2, width - width // 2, height // 2, height - height // 2)), (0, 0)

    def fold(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return weight and bias of the one convolution; without gradients they are computed once and kept."""
        sources = (self.weight, *self.norm.parameters(), *self.norm.buffers())
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or any(s.is_inference() for s in sources):
            return self._compute_folded()
        kind = x.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else self.weight.dtype
        # the tensors themselves, as an id could be given to a new tensor
        state = [dtype, self.weight.device, *((s, s._version) for s in sources)]
        if self._folded is None or not _is_same(self._folded[0], state):
            weight, bias = (value.to(dtype) for value in self._compute_folded())
            self._folded = state, (weight.contiguous(memory_format=torch.channels_last), bias)
        return self._folded[1]

    def _compute_folded(self) -> tuple[Tensor, Tensor]:
        factor, shift = self.norm.factor_and_shift()
        return self.weight * factor[:, None, None, None], shift

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self._folded = None  # weights move without a new version
        return super()._apply(fn, recurse)


def folded_weights(model: nn.Module) -> list[Any]:
    """Return the folded weights that the convolutions of a model keep."""
    return [part._folded for part in model.modules() if isinstance(part, NormedConvolution)]


def same_padding(size: int, kernel: int, stride: int) -> int:
    """Return the cells that TensorFlow's "same" padding adds in total along one axis."""
    cells = -(-size // stride)
    return max((cells - 1) * stride + kernel - size, 0)


def _is_same(before: list[Any], now: list[Any]) -> bool:
    """Return whether two states have equal dtype, device and versions, of the same tensors."""
    return before[:2] == now[:2] and all(
        a[0] is b[0] and a[1] == b[1] for a, b in zip(before[2:], now[2:], strict=True)
    )
