"""DETR (Carion et al., 2020): attention instead of proposals and NMS.

    picture -> backbone -> tokens -> encoder -> decoder with learned queries -> one class and box per query

Every query finds at most one object, since training matches queries and objects one to one. Plain DETR learns slowly.
This one has boxes that each layer refines (Liu et al., 2022), heads that look near the box (Gao et al., 2021), a loss
after every layer, and groups of queries that train side by side (Chen et al., 2022).
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from qkv.models.attention_pattern import kinds_of_layers
from qkv.models.builders import PositionEmbedding, encoder_block
from qkv.models.detectors.backbone import make_backbone
from qkv.models.detectors.base import (
    MAX_DETECTIONS,
    Clock,
    DetectionBatch,
    Detector,
    Extents,
    PaddedDetections,
    Pictures,
    Proposals,
    ScoredRegions,
    clip_to_extents,
    ignore_time,
    normalize,
)
from qkv.models.detectors.query_decoder import QueryBlock, QueryDecoder, Tokens, waves
from qkv.models.detectors.set_loss import corners, set_loss, targets_of
from qkv.models.detectors.token_loss import TokenHead
from qkv.models.registry import register
from qkv.models.validation import require_at_least, values_readable

NORM_GROUPS = 8


@dataclass(frozen=True)
class DETRConfig:
    """Settings of DETR."""

    backbone: str = "small"
    """small, wide, contrast and wide-contrast (blind to color), or lite0: EfficientNet-Lite0, trained on ImageNet."""
    stride: int = 8
    """Pixels per token; a backbone with a larger stride keeps its own."""
    dim: int = 128
    """Width of the model."""
    heads: int = 4
    """Attention heads; they share the width."""
    hidden_dim: int = 512
    """Width of the feed-forward layers."""
    layers: int = 2
    """Encoder layers."""
    decoder_layers: int = 3
    """Decoder layers; each refines the boxes."""
    queries: int = 64
    """Most objects that can be found in a picture."""
    groups: int = 2
    """Groups of queries to train; only the first is used after training."""
    attention: str = "softmax"
    """Kind of self-attention in the encoder, such as elu or taylor(order=4), or a pattern: elu,softmax."""
    cross: str = "softmax"
    """Kind of attention from queries to tokens."""
    token_loss: float = 1.0
    """Weight of the loss that trains every token near an object to find it; 0: none."""

    def __post_init__(self) -> None:
        require_at_least(1, self, "stride", "dim", "heads", "hidden_dim", "decoder_layers", "queries", "groups")
        require_at_least(0, self, "layers")
        if self.dim % (4 * self.heads) or self.dim % NORM_GROUPS:
            raise ValueError(f"dim={self.dim} must be a multiple of 4 * heads={4 * self.heads} and of {NORM_GROUPS}")
        if not 0 <= self.token_loss < math.inf:
            raise ValueError(f"token_loss must be 0 or more, got {self.token_loss}")
        if self.stride & (self.stride - 1):
            raise ValueError(f"stride must be a power of 2, got {self.stride}")

    @property
    def positions(self) -> str:
        """Position scheme inside of the encoder layers: none, since waves are added to the tokens."""
        return "none"

    @property
    def dropout(self) -> float:
        """Dropout probability: none, since scenes are never seen twice and photographs are augmented."""
        return 0.0

    @property
    def key_dim(self) -> None:
        """Width of queries and keys: dim / heads."""

    @property
    def convolution(self) -> int:
        """Width of short convolutions: none."""
        return 0

    @property
    def max_length(self) -> int:
        """Longest sequence: any."""
        return 1


class TokenEncoder(nn.Module):
    """The feature map as tokens with 2-D positions, then encoder layers of any attention kind."""

    def __init__(self, config: DETRConfig, channels: int, stride: int):
        super().__init__()
        halvings = max(0, round(math.log2(config.stride / stride)))
        self.stride, self.dim = stride * 2**halvings, config.dim
        layers: list[nn.Module] = []
        for _ in range(halvings):
            layers += [
                nn.Conv2d(channels, config.dim, 3, 2, 1, bias=False), nn.GroupNorm(NORM_GROUPS, config.dim), nn.ReLU(),
            ]  # fmt: skip
            channels = config.dim
        self.project = nn.Sequential(*layers, nn.Conv2d(channels, config.dim, 1))
        positions = PositionEmbedding(config, bidirectional=True)
        self.blocks = nn.ModuleList(
            encoder_block(config, positions, kind) for kind in kinds_of_layers(config.attention, config.layers)
        )
        self.norm = nn.LayerNorm(config.dim)

    def forward(self, features: Float[Tensor, "batch channels rows columns"], extents: Extents) -> Tokens:
        """Return the tokens of a feature map; those outside of each picture's extent are hidden."""
        x = self.project(features)
        rows, columns = (torch.arange(side, device=x.device) * self.stride for side in x.shape[2:])
        height, width = extents[:, :1], extents[:, 1:]
        is_real = ((rows < height)[..., None] & (columns < width)[:, None]).flatten(1)
        down, across = (rows + self.stride / 2) / height, (columns + self.stride / 2) / width
        down_waves, across_waves = (waves(line[..., None], self.dim // 2) for line in (down, across))
        grid = [
            across_waves[:, None].expand(-1, len(rows), -1, -1), down_waves[:, :, None].expand(-1, -1, len(columns), -1)
        ]  # fmt: skip
        # under autocast, the sum of all layers stays in the dtype of the weights
        x = (x.flatten(2).transpose(1, 2) + torch.cat(grid, -1).flatten(1, 2)).to(self.norm.weight.dtype)
        # attention without a mask has faster kernels
        mask = None if values_readable(is_real) and bool(is_real.all()) else is_real
        for block in self.blocks:
            x = block(x, mask)
        return Tokens(self.norm(x), down, across, is_real)


@register("detr", DETRConfig)
class DETR(Detector):
    """Find objects with learned queries: no proposals, no NMS."""

    def __init__(self, config: DETRConfig, classes: int):
        super().__init__()
        if classes < 1:
            raise ValueError(f"classes must be at least 1, got {classes}")
        self.config = config
        self.backbone: Any = make_backbone(config.backbone)
        self.encoder = TokenEncoder(config, self.backbone.channels, self.backbone.stride)
        blocks = [
            QueryBlock(config.dim, config.heads, config.hidden_dim, config.cross, config.dropout)
            for _ in range(config.decoder_layers)
        ]
        self.decoder = QueryDecoder(blocks, config.dim, config.queries, config.groups, classes)
        self.token_head = TokenHead(config.dim, classes) if config.token_loss else None

    def features(self, pictures: Pictures, proposals: Proposals) -> Float[Tensor, "batch channels rows columns"]:
        """Return the feature map."""
        return self.backbone(normalize(pictures, self))

    def loss(self, batch: DetectionBatch) -> Float[Tensor, ""]:
        """Return the loss of classes and boxes, summed over pictures; in eval mode, that of detection alone."""
        objects = batch.boxes.shape[1]
        if objects > self.config.queries:
            raise ValueError(f"queries={self.config.queries} must be at least the {objects} objects of a picture")
        groups = self.config.groups if self.training else 1
        tokens = self.encoder(self.features(batch.pictures, batch.proposals), batch.extents)
        targets = targets_of(batch)
        loss = set_loss(self.decoder(tokens, groups), targets, groups)
        if self.token_head is None or not self.training:
            return loss
        return loss + self.config.token_loss * self.token_head.loss(tokens, targets)

    def regions(
        self, features: Tensor, extents: Extents, proposals: Proposals, clock: Clock = ignore_time
    ) -> ScoredRegions:
        """Return the box and the class scores of every query."""
        found = self.decoder(self.encoder(features, extents))
        scores = found.logits[-1].sigmoid()
        size = extents.flip(1).repeat(1, 2)[:, None]  # width, height, width, height
        boxes = clip_to_extents(corners(found.boxes[-1]) * size, extents)
        return ScoredRegions(boxes[:, :, None].expand(-1, -1, scores.shape[2], -1), scores)

    def select_padded(self, found: ScoredRegions, candidates: int) -> PaddedDetections:
        """Return the detections with the highest scores of each picture, without NMS."""
        classes = found.scores.shape[2]
        scores = found.scores.flatten(1)
        scores = scores.masked_fill(scores.isnan(), -torch.inf)
        scores, index = scores.topk(min(MAX_DETECTIONS, candidates, scores.shape[1]), dim=1)
        boxes = found.boxes.flatten(1, 2).gather(1, index[..., None].expand(-1, -1, 4))
        return PaddedDetections(boxes, scores, index % classes, (scores >= self.min_score).sum(1))
