"""A small convolutional network for images, which downsamples by pooling or by stride.

    conv 3x3, 8 -> halve -> conv 3x3, 16 -> halve -> 320 -> 120 -> classes          (ReLU after each but the last)

With pooling a convolution runs at full size, and three of four results are dropped. With stride 2 it computes only
what is kept: fewer multiplications, but on 28 x 28 more parameters, since 6 x 6 remain instead of 5 x 5.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from qkv.cost import Cost, Span, convolution, linear
from qkv.errors import unknown_name_error
from qkv.models.registry import register

FILTERS = (8, 16)
HIDDEN = (320, 120)
STRIDES = {"pool": 1, "stride": 2}
HALVES: dict[str, Callable[[], nn.Module]] = {"pool": lambda: nn.MaxPool2d(2), "stride": nn.Identity}


@dataclass(frozen=True)
class ConvolutionalConfig:
    """Settings of a convolutional network."""

    downsample: str = "pool"
    """pool (maximum of 2 x 2) or stride (every other position)."""
    padding: int = 0
    """Zero padding of the first convolution."""

    def __post_init__(self) -> None:
        if self.downsample not in STRIDES:
            raise unknown_name_error("downsample", self.downsample, STRIDES)
        if self.padding < 0:
            raise ValueError(f"padding must be 0 or more, got {self.padding}")


@register("convolutional", ConvolutionalConfig)
class Convolutional(nn.Module):
    """Class logits of images (batch, channels, height, width)."""

    def __init__(
        self,
        classes: int = 4,
        downsample: str = "pool",
        padding: int = 0,
        *,
        channels: int = 1,
        size: tuple[int, int] = (28, 28),
    ):
        super().__init__()
        config = ConvolutionalConfig(downsample, padding)
        stride = STRIDES[config.downsample]
        remaining = [_halved(_halved(side + 2 * padding, downsample), downsample) for side in size]
        if min(remaining) < 1 or channels < 1 or classes < 1:
            raise ValueError(
                f"images of {channels} x {size[0]} x {size[1]} are too small for two convolutions, or classes "
                f"is below 1, got {classes}"
            )
        self.size, self.halves = size, downsample == "pool"
        first, second = FILTERS
        self.filters = nn.Sequential(
            OrderedDict(
                first=nn.Conv2d(channels, first, 3, stride, padding),
                first_half=HALVES[downsample](),
                first_activation=nn.ReLU(),  # after pooling: the same values, a quarter of the work
                second=nn.Conv2d(first, second, 3, stride),
                second_half=HALVES[downsample](),
                second_activation=nn.ReLU(),
            )
        )
        wide, narrow = HIDDEN
        self.classifier = nn.Sequential(
            nn.Linear(second * remaining[0] * remaining[1], wide), nn.ReLU(), nn.Linear(wide, narrow), nn.ReLU(),
            nn.Linear(narrow, classes),
        )  # fmt: skip

    @classmethod
    def from_config(cls, config: ConvolutionalConfig, *sizes: int) -> "Convolutional":
        """Return a network for images of channels, height and width, and a number of classes."""
        if len(sizes) != 4:
            raise ValueError(
                f"a convolutional network needs images (channels, height, width) and classes, got sizes {sizes}; "
                "use the family network"
            )
        channels, height, width, classes = sizes
        return cls(classes, config.downsample, config.padding, channels=channels, size=(height, width))

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (batch, classes)."""
        return self.classifier(self.filters(images).flatten(1))

    def cost(self, span: Span) -> Cost:
        """Return the cost of the convolutions and the three linear layers, for `span.batch` images."""
        total, sides = Cost(), list(self.size)
        for layer in self.filters:
            if isinstance(layer, nn.Conv2d):
                edge = int(layer.padding[0])
                sides = [(side + 2 * edge - 3) // layer.stride[0] + 1 for side in sides]
                total += convolution(layer, span.batch * sides[0] * sides[1])
                sides = [side // 2 for side in sides] if self.halves else sides
        return sum((linear(layer, span.batch) for layer in self.classifier if isinstance(layer, nn.Linear)), total)


def _halved(side: int, downsample: str) -> int:
    """Return the size of a side after a 3x3 convolution and halving, which both round down."""
    return (side - 3) // 2 + 1 if downsample == "stride" else (side - 2) // 2
