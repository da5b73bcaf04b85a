"""R-CNN (Girshick et al., 2014): external proposals, each cropped, warped and passed through the network by itself.

    stage    learns                                from                                      while
    network  backbone and a softmax classifier     crops; positive from IoU 0.5 on
    svm      a linear SVM per class                features of crops, hardest negatives      the network stays fixed
    boxes    a ridge regression per class          features of crops, from IoU 0.6 on        the network stays fixed

The final classifier and the boxes are outside of the network: they see its features and send no gradient back.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from qkv.models.detectors.backbone import make_backbone
from qkv.models.detectors.base import (
    DetectionBatch,
    Extents,
    Pictures,
    Proposals,
    ScoredRegions,
    clip_to_extents,
    normalize,
)
from qkv.models.detectors.region_detector import (
    RegionConfig,
    RegionDetector,
    class_loss,
    make_hidden_layers,
    sample_regions,
)
from qkv.models.detectors.ridge import RidgeRegression
from qkv.models.regions import box_area, decode_boxes, encode_boxes, iou, roi_align
from qkv.models.registry import register

NEGATIVE_IOU = 0.3
BOX_IOU = 0.6
HARD_NEGATIVES = 4
"""Negatives per picture and class that the SVMs learn from: those with the largest margins."""
MIN_CROP = 24
"""Crops have at least this side, in pixels: a multiple of the pooled features."""
CHUNK = 512
"""Crops that go through the network at a time after training."""


@dataclass(frozen=True)
class RCNNConfig(RegionConfig):
    """Settings of R-CNN."""

    ridge: float = 10.0
    """Penalty of the squared weights of the box regression."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.ridge > 0:
            raise ValueError(f"ridge must be above 0, got {self.ridge}")


@register("rcnn", RCNNConfig)
class RCNN(RegionDetector):
    """Classify crops of the picture with SVMs on features of a network."""

    needs_proposals = True
    stages = ("network", "svm", "boxes")
    has_unused_parameters = True
    """Each stage trains its own part."""

    def __init__(self, config: RCNNConfig, classes: int):
        super().__init__()
        self.config = config
        self.backbone: Any = make_backbone(config.backbone)
        step = config.pool * self.backbone.stride
        self.crop = -(-MIN_CROP // step) * step
        self.hidden = make_hidden_layers(self.backbone.channels, config)
        self.classes = nn.Linear(config.hidden_dim, classes + 1)  # the last is background
        self.svm = nn.Linear(config.hidden_dim, classes)
        self.boxes = RidgeRegression(classes, config.hidden_dim, 4, config.ridge)
        nn.init.zeros_(self.svm.weight)
        nn.init.constant_(self.svm.bias, -1.0)  # a margin of -1: nothing is an object yet

    def features(self, pictures: Pictures, proposals: Proposals) -> Float[Tensor, "batch proposals hidden"]:
        """Return the features of each crop."""
        crops = roi_align(normalize(pictures, self), proposals, self.crop, 1.0).flatten(0, 1)
        chunks = [self._crop_features(chunk) for chunk in crops.split(CHUNK)]
        return torch.cat(chunks).unflatten(0, proposals.shape[:2])

    def _crop_features(self, crops: Float[Tensor, "crops 3 side side"]) -> Float[Tensor, "crops hidden"]:
        return self.hidden(functional.adaptive_max_pool2d(self.backbone(crops), self.config.pool))

    def score(self, features: Tensor, extents: Extents, proposals: Proposals) -> ScoredRegions:
        """Return the sigmoid of the margins, so that one threshold fits all detectors, and the regressed boxes."""
        offsets = self.boxes(features)  # [batch, proposals, classes, 4]
        anchors = proposals[:, :, None].expand_as(offsets)
        boxes = clip_to_extents(decode_boxes(offsets, anchors), extents)
        empty = (box_area(proposals) <= 0)[..., None]
        return ScoredRegions(boxes, self.svm(features).float().sigmoid().masked_fill(empty, -torch.inf))

    def loss(self, batch: DetectionBatch) -> Float[Tensor, ""]:
        """Return the loss of the batch's stage, summed over pictures."""
        stage = self.stages[int(batch.stage)]
        if stage == "network":
            return self._network_loss(batch)
        boxes = torch.cat([batch.boxes, batch.proposals], 1)
        with torch.no_grad():
            features = self.features(batch.pictures, boxes).float()
        return self._svm_loss(features, boxes, batch) if stage == "svm" else self._fit_boxes(features, boxes, batch)

    def _network_loss(self, batch: DetectionBatch) -> Tensor:
        sampled = sample_regions(batch, batch.proposals, self.config.samples, self.config.positive_share)
        return class_loss(self.classes(self.features(batch.pictures, sampled.boxes)), sampled)

    def _svm_loss(self, features: Tensor, boxes: Tensor, batch: DetectionBatch) -> Tensor:
        """Return the hinge loss: true boxes are positives, boxes with IoU < 0.3 to all of a class negatives."""
        margins = self.svm(features)  # [batch, boxes, classes]
        overlaps = class_overlaps(boxes, batch, margins.shape[-1])
        true = functional.one_hot(batch.classes.clamp_min(0), margins.shape[-1]).bool()
        true &= ((batch.classes >= 0) & ~batch.difficult)[..., None]
        positive = functional.pad(true, (0, 0, 0, batch.proposals.shape[1]))
        negative = (overlaps < NEGATIVE_IOU) & (box_area(boxes) > 0)[..., None]
        hardest = margins.masked_fill(~negative, -torch.inf)
        hardest = hardest.topk(min(HARD_NEGATIVES, hardest.shape[1]), dim=1).values
        wrong = (1 + hardest).clamp_min(0).sum((1, 2))
        return (((1 - margins).clamp_min(0) * positive).sum((1, 2)) + wrong).sum()

    def _fit_boxes(self, features: Tensor, boxes: Tensor, batch: DetectionBatch) -> Tensor:
        """Add the regions near objects to the ridge regression; return its squared error."""
        best, nearest = _nearest_object(boxes, batch)
        near = (best >= BOX_IOU) & (box_area(boxes) > 0)
        objects = batch.boxes.gather(1, nearest[..., None].expand(-1, -1, 4))
        rows = near.nonzero(as_tuple=True)
        wanted = encode_boxes(objects[rows], boxes[rows])
        return self.boxes.add(features[rows], wanted, batch.classes.gather(1, nearest)[rows])


def class_overlaps(boxes: Tensor, batch: DetectionBatch, classes: int) -> Float[Tensor, "batch boxes classes"]:
    """Return the largest IoU of each box with an object of each class."""
    overlaps = iou(boxes, batch.boxes)  # [batch, boxes, objects]
    own: Bool[Tensor, "batch objects classes"] = batch.classes[..., None] == torch.arange(classes, device=boxes.device)
    table = overlaps[..., None] * own[:, None]
    return table.amax(2) if table.shape[2] else overlaps.new_zeros(*boxes.shape[:2], classes)


def _nearest_object(boxes: Tensor, batch: DetectionBatch) -> tuple[Tensor, Tensor]:
    if not batch.boxes.shape[1]:
        nothing = torch.zeros(boxes.shape[:2], dtype=torch.long, device=boxes.device)
        return nothing.float(), nothing
    usable = ((batch.classes >= 0) & ~batch.difficult)[:, None]
    return (iou(boxes, batch.boxes) * usable).max(2)
