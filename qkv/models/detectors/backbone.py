"""Backbones of detectors: convolutional networks that turn a picture into a feature map."""

from collections.abc import Callable
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from qkv.errors import unknown_name_error
from qkv.models.detectors.lite0 import Lite0Backbone

GROUPS = 8
WIDTHS = (24, 48, 64)
WIDE = (64, 128, 256)


class Backbone(Protocol):
    """A network from normalized pictures to a feature map."""

    stride: int
    """Pixels per cell of the map."""
    channels: int

    def __call__(self, pictures: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch channels rows columns"]:
        """Return the feature map, with ceil(height / stride) rows."""


class SmallBackbone(nn.Module):
    """A small feature pyramid: three blocks at strides 2, 4 and 8, added up from the coarsest to stride 2.

    The coarse blocks see whole objects, the fine one keeps the strokes of small ones.
    """

    stride = 2

    def __init__(self, widths: tuple[int, int, int] = WIDTHS, stem: nn.Module | None = None):
        super().__init__()
        first, second, third = widths
        self.channels = third
        self.fine = nn.Sequential(stem or _convolution(3, first, 2), _convolution(first, first))
        self.middle = nn.Sequential(_convolution(first, second, 2), _convolution(second, second))
        self.coarse = nn.Sequential(_convolution(second, third, 2), _convolution(third, third))
        self.from_middle, self.from_fine = nn.Conv2d(second, third, 1), nn.Conv2d(first, third, 1)
        self.merge = _convolution(third, third)

    def forward(self, pictures: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch channels rows columns"]:
        """Return the feature map."""
        stem, *rest = self.fine
        fine = stem(pictures)
        if not fine.is_cuda:  # the layout in which a CPU convolves and reads regions fastest
            fine = fine.contiguous(memory_format=torch.channels_last)
        for part in rest:
            fine = part(fine)
        middle = self.middle(fine)
        coarse = self.coarse(middle)
        merged = self.merge(self.from_middle(middle) + _resize_like(coarse, middle))
        return self.from_fine(fine) + _resize_like(merged, fine)


class ContrastStem(nn.Module):
    """Filters that respond to contrast and not to color, at stride 2.

    Each filter sees one color channel at a time; its response is the norm over the three channels. So a dark stroke on
    a light ground gives what a light one on a dark ground gives, and a network has one pattern to learn instead of one
    per pair of colors. Use it where color says nothing of the class.
    """

    def __init__(self, outputs: int, size: int = 5):
        super().__init__()
        self.filters = nn.Conv2d(1, outputs, size, 2, size // 2, bias=False)
        self.norm = nn.GroupNorm(GROUPS, outputs)

    def forward(self, pictures: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch outputs rows columns"]:
        """Return the normalized responses."""
        responses = self.filters(pictures.flatten(0, 1)[:, None]).unflatten(0, pictures.shape[:2])
        # without the small number, the gradient of the square root at 0 is infinite
        return self.norm((responses.square().sum(1) + 1e-4).sqrt())


def _resize_like(coarse: Tensor, fine: Tensor) -> Tensor:
    """Repeat cells so that the map has the size of a finer one."""
    return functional.interpolate(coarse, size=fine.shape[2:], mode="nearest")


def _convolution(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution with group normalization, which does not depend on the other pictures of a batch."""
    convolution = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
    return nn.Sequential(convolution, nn.GroupNorm(GROUPS, outputs), nn.ReLU(inplace=True))


BACKBONES: dict[str, Callable[[], nn.Module]] = {
    "small": SmallBackbone,
    "contrast": lambda: SmallBackbone(stem=ContrastStem(WIDTHS[0])),
    "wide": lambda: SmallBackbone(WIDE),
    "wide-contrast": lambda: SmallBackbone(WIDE, stem=ContrastStem(WIDE[0])),
    "lite0": Lite0Backbone,
    "lite0-random": lambda: Lite0Backbone(pretrained=False),
}


def make_backbone(name: str) -> Backbone:
    """Return a new backbone."""
    if name not in BACKBONES:
        raise unknown_name_error("backbone", name, BACKBONES)
    return BACKBONES[name]()  # type: ignore[return-value]
