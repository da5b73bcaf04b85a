"""EfficientNet-Lite0: a classifier of ImageNet's 1,000 classes, and a backbone of detectors cut from it.

    stem        3x3, stride 2                                          32 channels, stride 2
    blocks      expand 1x1 -> depthwise 3x3 or 5x5 -> project 1x1      16 blocks, up to 320 channels, stride 32
    head        1x1, mean over cells, linear                           1,280 -> 1,000 classes

As EfficientNet-B0, but ReLU6 instead of swish, no squeeze-excitation. Pixels are (x - 127) / 128.
Batch normalization is frozen: a batch of a few pictures would estimate its statistics badly.
"""

from math import sqrt
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from qkv.models.detectors.frozen_norm import FeatureMap, NormedConvolution
from qkv.models.detectors.lite0_weights import read_lite0_weights

STEM_CHANNELS, HEAD_CHANNELS = 32, 1280
IMAGENET_CLASSES = 1000


class Group(NamedTuple):
    """Blocks of the same width; the first one has the stride."""

    blocks: int
    kernel: int
    stride: int
    expansion: int
    channels: int


GROUPS = (
    Group(1, 3, 1, 1, 16), Group(2, 3, 2, 6, 24), Group(2, 5, 2, 6, 40), Group(3, 3, 2, 6, 80),
    Group(3, 5, 1, 6, 112), Group(4, 5, 2, 6, 192), Group(1, 3, 1, 6, 320),
)  # fmt: skip
BACKBONE_GROUPS = GROUPS[:5]
"""Blocks 0 to 10: stride 16, 112 channels."""


class InvertedResidual(nn.Module):
    """A block that is wide inside: expand, filter each channel on its own, project; added to its input if it fits."""

    def __init__(self, inputs: int, group: Group, *, stride: int):
        super().__init__()
        inner = inputs * group.expansion
        self.expand = NormedConvolution(inputs, inner) if group.expansion > 1 else None
        self.depthwise = NormedConvolution(inner, inner, group.kernel, stride=stride, groups=inner)
        self.project = NormedConvolution(inner, group.channels)
        self.is_residual = stride == 1 and inputs == group.channels

    def forward(self, x: FeatureMap) -> Float[Tensor, "batch outputs rows columns"]:
        """Return the map after the block."""
        inner = x if self.expand is None else functional.relu6(self.expand(x), inplace=True)
        inner = functional.relu6(self.depthwise(inner), inplace=True)
        outputs = self.project(inner)
        return outputs + x if self.is_residual else outputs


class Lite0(nn.Module):
    """EfficientNet-Lite0 as a classifier; random weights until `load_pretrained`."""

    def __init__(self, classes: int = IMAGENET_CLASSES):
        super().__init__()
        self.stem = NormedConvolution(3, STEM_CHANNELS, 3, stride=2)
        self.blocks = _make_blocks(GROUPS)
        self.head = NormedConvolution(GROUPS[-1].channels, HEAD_CHANNELS)
        self.classifier = nn.Linear(HEAD_CHANNELS, classes)
        _init_weights(self)

    def forward(self, pictures: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch classes"]:
        """Return the logits of normalized pictures."""
        x = functional.relu6(self.stem(pictures), inplace=True)
        x = functional.relu6(self.head(self.blocks(x)), inplace=True)
        return self.classifier(x.mean((2, 3)))

    def load_pretrained(self) -> None:
        """Load the weights trained on ImageNet; the first call downloads them."""
        self.load_state_dict(read_lite0_weights())


class Lite0Backbone(nn.Module):
    """EfficientNet-Lite0 up to stride 16.

    `pretrained` says that `load_pretrained` fills it; nothing is downloaded here. With `frozen_blocks` the stem and as
    many blocks are not trained.
    """

    stride = 16
    channels = BACKBONE_GROUPS[-1].channels

    def __init__(self, *, pretrained: bool = True, frozen_blocks: int = 0):
        super().__init__()
        self.pretrained = pretrained
        self.stem = NormedConvolution(3, STEM_CHANNELS, 3, stride=2)
        self.blocks = _make_blocks(BACKBONE_GROUPS)
        _init_weights(self)
        self.freeze_blocks(frozen_blocks)

    def freeze_blocks(self, count: int) -> None:
        """Train only the blocks from `count` on; the stem is trained if `count` is 0."""
        if not 0 <= count <= len(self.blocks):
            raise ValueError(f"frozen_blocks={count} must be from 0 to {len(self.blocks)}")
        self.frozen_blocks = count
        for number, part in enumerate((self.stem, *self.blocks)):
            for unit in (m for m in part.modules() if isinstance(m, NormedConvolution)):
                unit.weight.requires_grad_(count == 0 or number > count)

    def load_pretrained(self) -> None:
        """Load the weights trained on ImageNet, unless `pretrained` is False; the first call downloads them."""
        if self.pretrained:
            weights = read_lite0_weights()
            self.load_state_dict({name: weights[name] for name in self.state_dict()})

    def forward(self, pictures: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch channels rows columns"]:
        """Return the feature map, with ceil(height / 16) rows."""
        x = pad_to_multiple(pictures, self.stride).contiguous(memory_format=torch.channels_last)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen_blocks):
            x = functional.relu6(self.stem(x), inplace=True)
            x = self.blocks[: self.frozen_blocks](x)
        return self.blocks[self.frozen_blocks :](x)


def pad_to_multiple(x: FeatureMap, size: int) -> FeatureMap:
    """Return x with zeros at the bottom and at the right up to a multiple of `size`.

    All maps then have even sides, as in pretraining: "same" padding moves the cells of odd ones by half a stride.
    """
    height, width = (-side % size for side in x.shape[2:])
    return functional.pad(x, (0, width, 0, height)) if height or width else x


def _make_blocks(groups: tuple[Group, ...]) -> nn.Sequential:
    blocks, inputs = [], STEM_CHANNELS
    for group in groups:
        for number in range(group.blocks):
            blocks.append(InvertedResidual(inputs, group, stride=1 if number else group.stride))
            inputs = group.channels
    return nn.Sequential(*blocks)


def _init_weights(module: nn.Module) -> None:
    """Draw the weights such that maps keep their variance; a projection has no ReLU after it."""
    for name, part in module.named_modules():
        if isinstance(part, NormedConvolution):
            fan_in = part.weight[0].numel()
            nn.init.normal_(part.weight, std=sqrt((1 if name.endswith("project") else 2) / fan_in))
        elif isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=sqrt(1 / part.in_features))
            nn.init.zeros_(part.bias)
