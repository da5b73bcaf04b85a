"""Backbones of detectors: convolutional networks that turn a picture into a feature map."""

from collections.abc import Callable
from typing import Protocol

from jaxtyping import Float
from torch import Tensor, nn

from qkv.errors import unknown_name_error

GROUPS = 8
WIDTHS = (16, 32, 64)


class Backbone(Protocol):
    """A network from normalized pictures to a feature map."""

    stride: int
    """Pixels per cell of the map."""
    channels: int

    def __call__(self, pictures: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch channels rows columns"]:
        """Return the feature map, with ceil(height / stride) rows."""


class SmallBackbone(nn.Module):
    """Three blocks of two 3x3 convolutions, the first two with stride 2: a feature map of stride 4."""

    stride = 4

    def __init__(self, widths: tuple[int, int, int] = WIDTHS):
        super().__init__()
        first, second, third = widths
        self.channels = third
        self.blocks = nn.Sequential(
            _convolution(3, first, 2), _convolution(first, first),
            _convolution(first, second, 2), _convolution(second, second),
            _convolution(second, third), _convolution(third, third),
        )  # fmt: skip

    def forward(self, pictures: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch channels rows columns"]:
        """Return the feature map."""
        return self.blocks(pictures)


def _convolution(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution with group normalization, which does not depend on the other pictures of a batch."""
    convolution = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
    return nn.Sequential(convolution, nn.GroupNorm(GROUPS, outputs), nn.ReLU(inplace=True))


BACKBONES: dict[str, Callable[[], nn.Module]] = {
    "small": SmallBackbone,
    "wide": lambda: SmallBackbone((64, 128, 256)),
}


def make_backbone(name: str) -> Backbone:
    """Return a new backbone."""
    if name not in BACKBONES:
        raise unknown_name_error("backbone", name, BACKBONES)
    return BACKBONES[name]()  # type: ignore[return-value]
