"""Fast R-CNN (Girshick, 2015): external proposals; one feature map per picture, RoI pooling, two losses."""

from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from qkv.models.detectors.backbone import make_backbone
from qkv.models.detectors.base import DetectionBatch, Extents, Pictures, Proposals, ScoredRegions, normalize
from qkv.models.detectors.region_detector import (
    RegionConfig,
    RegionDetector,
    RegionHead,
    box_loss,
    class_loss,
    make_pooling,
    sample_regions,
    scored_by_softmax,
)
from qkv.models.registry import register
from qkv.models.validation import require_at_least


@dataclass(frozen=True)
class FastConfig(RegionConfig):
    """Settings of Fast R-CNN."""

    pooling: str = "max"
    """max (RoI pooling) or align (RoI alignment)."""
    bin_samples: int = 2
    """RoI alignment averages bin_samples x bin_samples points of each bin."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, self, "bin_samples")
        make_pooling(self.pooling, self.bin_samples)


@register("fast", FastConfig)
class FastRCNN(RegionDetector):
    """Classify external proposals on a shared feature map."""

    needs_proposals = True

    def __init__(self, config: FastConfig, classes: int):
        super().__init__()
        self.config = config
        self.backbone: Any = make_backbone(config.backbone)
        self.head = RegionHead(self.backbone.channels, config, classes)
        self._pool = make_pooling(config.pooling, config.bin_samples)

    def features(self, pictures: Pictures, proposals: Proposals) -> Float[Tensor, "batch channels rows columns"]:
        """Return the feature map."""
        return self.backbone(normalize(pictures, self))

    def loss(self, batch: DetectionBatch) -> Float[Tensor, ""]:
        """Return the losses of classes and boxes of sampled regions, summed over pictures."""
        return self._region_loss(self.features(batch.pictures, batch.proposals), batch, batch.proposals)

    def score(self, features: Tensor, extents: Extents, proposals: Proposals) -> ScoredRegions:
        """Return the class probabilities and boxes of regions."""
        return scored_by_softmax(*self._classify(features, proposals), proposals, extents)

    def _region_loss(self, features: Tensor, batch: DetectionBatch, proposals: Proposals) -> Tensor:
        sampled = sample_regions(batch, proposals, self.config.samples, self.config.positive_share)
        logits, offsets = self._classify(features, sampled.boxes)
        return class_loss(logits, sampled) + box_loss(offsets, sampled)

    def _classify(self, features: Tensor, regions: Tensor) -> tuple[Tensor, Tensor]:
        return self.head(self._pool(features, regions, self.config.pool, 1 / self.backbone.stride))
