"""Faster R-CNN (Ren et al., 2015): Fast R-CNN whose proposals come from a network on the same feature map."""

from dataclasses import dataclass

from jaxtyping import Float, Num
from torch import Tensor

from qkv.models.detectors.base import DetectionBatch, Extents, Proposals, ScoredRegions, full_extents
from qkv.models.detectors.fast import FastConfig, FastRCNN
from qkv.models.detectors.rpn import RegionProposalNetwork
from qkv.models.registry import register
from qkv.models.validation import require_at_least


@dataclass(frozen=True)
class FasterConfig(FastConfig):
    """Settings of Faster R-CNN."""

    pooling: str = "align"
    """max (RoI pooling) or align (RoI alignment)."""
    anchors: int = 6
    """Anchor sizes per cell, fitted to the training boxes."""
    train_proposals: int = 64
    """Proposals per picture while training."""
    proposals: int = 50
    """Proposals per picture that are classified after training."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, self, "anchors", "train_proposals", "proposals")


@register("faster", FasterConfig)
class FasterRCNN(FastRCNN):
    """Propose regions and classify them on one feature map; four losses, one stage."""

    needs_proposals = False
    config: FasterConfig

    def __init__(self, config: FasterConfig, classes: int):
        super().__init__(config, classes)
        self.rpn = RegionProposalNetwork(self.backbone.channels, config.anchors, self.backbone.stride)

    @property
    def can_record_detection(self) -> bool:
        """Whether a CUDA graph can record a detection: with RoI alignment, which reads no values."""
        return self.config.pooling == "align"

    def set_anchor_sizes(self, sizes: Float[Tensor, "boxes 2"]) -> Float[Tensor, "anchors 2"]:
        """Fit the anchors to the (width, height) of the training boxes."""
        self.rpn.fit(sizes)
        return self.rpn.sizes

    def propose(self, features: Tensor, extents: Extents, proposals: Proposals) -> Proposals:
        """Return the network's own proposals."""
        return self.rpn.propose(self.rpn(features), extents, self.config.proposals)

    def forward(
        self, pictures: Num[Tensor, "batch 3 height width"], proposals: Float[Tensor, "batch proposals 4"]
    ) -> ScoredRegions:
        """Return the scored regions of given proposals; the RPN runs as well, but what it proposes is not used."""
        features = self.features(pictures, proposals)
        self.rpn(features)
        return self.score(features, full_extents(pictures), proposals)

    def loss(self, batch: DetectionBatch) -> Float[Tensor, ""]:
        """Return the losses of the proposals and of the regions, summed over pictures."""
        features = self.features(batch.pictures, batch.proposals)
        found = self.rpn(features)
        proposals = self.rpn.propose(found, batch.extents, self.config.train_proposals)
        return self.rpn.loss(found, batch) + self._region_loss(features, batch, proposals)
