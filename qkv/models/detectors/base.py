"""The interface of object detectors, and the selection of final boxes that they share.

A detector maps pictures to scored regions in two timed parts, then selects among them:

    features   pictures -> feature map            (R-CNN: crops -> features of each crop)
    regions    feature map, proposals -> boxes and class scores
    select     best class boxes of each picture; NMS where regions may overlap

Batches are dense. Pictures of different sizes are padded at the bottom and at the right, boxes with zeros.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Float32, Int64, Num, UInt8
from torch import Tensor, nn

from qkv.models.detectors.cuda_graph import can_replay, replay_detection
from qkv.models.regions import clip_boxes, nms

NO_CLASS = -1
MIN_SCORE = 0.05
NMS_IOU = 0.5
MAX_DETECTIONS = 100
MAX_CANDIDATES = 1000
"""Class boxes with the highest scores that NMS sees."""

Pictures = UInt8[Tensor, "batch 3 height width"]
Extents = Int64[Tensor, "batch 2"]
Proposals = Float32[Tensor, "batch proposals 4"]
Clock = Callable[[str], None]


class DetectionBatch(NamedTuple):
    """Pictures with their objects."""

    pictures: Pictures
    extents: Extents
    """(height, width) of each picture inside its padding."""
    boxes: Float32[Tensor, "batch objects 4"]
    """Corners (x1, y1, x2, y2); zeros where there is no object."""
    classes: Int64[Tensor, "batch objects"]
    """-1 where there is no object."""
    difficult: Bool[Tensor, "batch objects"]
    """Objects that count neither as found nor as missed."""
    proposals: Proposals
    """External proposals, zeros where there is none; (batch, 0, 4) for detectors that need none."""
    stage: Int64[Tensor, ""]
    """Index into `Detector.stages`."""


class Detection(NamedTuple):
    """The objects found in one picture, by falling score."""

    boxes: Float[Tensor, "found 4"]
    scores: Float[Tensor, " found"]
    classes: Int64[Tensor, " found"]


class PaddedDetections(NamedTuple):
    """The objects of all pictures by falling score, padded to a fixed number."""

    boxes: Float[Tensor, "batch most 4"]
    scores: Float[Tensor, "batch most"]
    classes: Int64[Tensor, "batch most"]
    counts: Int64[Tensor, " batch"]
    """Objects found in each picture."""

    def split(self, counts: list[int]) -> list[Detection]:
        """Return the objects of each picture without padding; `counts` are the values of `self.counts`."""
        return [
            Detection(self.boxes[i, :count], self.scores[i, :count], self.classes[i, :count])
            for i, count in enumerate(counts)
        ]


class ScoredRegions(NamedTuple):
    """Regions with a box and a score per class."""

    boxes: Float[Tensor, "batch regions classes 4"]
    scores: Float[Tensor, "batch regions classes"]
    """Probabilities or margins; -inf for a padded region."""


def ignore_time(part: str) -> None:
    """Do nothing at the end of a part."""


class Detector(nn.Module, ABC):
    """A model that finds the objects of pictures."""

    needs_proposals: ClassVar[bool] = False
    """Whether regions are proposed from outside of the model."""
    stages: ClassVar[tuple[str, ...]] = ("network",)
    """Stages of training, one after the other."""
    min_score: float = MIN_SCORE

    @property
    def can_record_detection(self) -> bool:
        """Whether a CUDA graph can record a detection: no value decides about a shape."""
        return False

    @abstractmethod
    def loss(self, batch: DetectionBatch) -> Float[Tensor, ""]:
        """Return the training loss, summed over pictures."""

    @abstractmethod
    def features(self, pictures: Pictures, proposals: Proposals) -> Any:
        """Return what the backbone computes."""

    @abstractmethod
    def regions(
        self, features: Any, extents: Extents, proposals: Proposals, clock: Clock = ignore_time
    ) -> ScoredRegions:
        """Return the boxes and scores of all regions; `clock` is called after each part before the last."""

    def forward(
        self, pictures: Num[Tensor, "batch 3 height width"], proposals: Float[Tensor, "batch proposals 4"]
    ) -> ScoredRegions:
        """Return the scored regions of unpadded pictures: all of a detection but NMS. `qkv cost` counts this."""
        return self.regions(self.features(pictures, proposals), full_extents(pictures), proposals)

    def select(self, found: ScoredRegions) -> list[Detection]:
        """Return the best class boxes of each picture."""
        scores = found.scores.flatten(1)
        likely = int((scores >= self.min_score).sum(1).max()) if scores.numel() else 0
        detections = self.select_padded(found, likely)
        return detections.split(detections.counts.tolist())

    def select_padded(self, found: ScoredRegions, candidates: int) -> PaddedDetections:
        """Return the best class boxes after NMS within each class; at most `candidates` per picture are looked at."""
        return select_with_nms(found, self.min_score, candidates)

    def detect_padded(self, pictures: Pictures, extents: Extents, proposals: Proposals) -> PaddedDetections:
        """Return the objects of all pictures; reads no values, so that a CUDA graph can record it."""
        found = self.regions(self.features(pictures, proposals), extents, proposals)
        return self.select_padded(found, MAX_CANDIDATES)

    @torch.inference_mode()
    def detect(
        self, pictures: Pictures, extents: Extents, proposals: Proposals, clock: Clock = ignore_time
    ) -> list[Detection]:
        """Return the objects of each picture; `clock` is called with the name of each part when it is done.

        On a GPU, the second detection of a shape records a CUDA graph, and later ones replay it, unless a clock is
        given.
        """
        if clock is ignore_time and can_replay(self, pictures):
            replayed = replay_detection(self, pictures, extents, proposals)
            if replayed is not None:
                return replayed
        features = self.features(pictures, proposals)
        clock("backbone")
        found = self.regions(features, extents, proposals, clock)
        clock("regions")
        detections = self.select(found)
        clock("nms")
        return detections

    def set_anchor_sizes(self, sizes: Float[Tensor, "boxes 2"]) -> Float[Tensor, "anchors 2"] | None:
        """Fit the anchors to the (width, height) of the training boxes and return them; None: there are none."""
        return None

    def load_pretrained(self) -> None:
        """Load the weights of a pretrained backbone, if this detector has one; called once for a new run."""
        load = getattr(getattr(self, "backbone", None), "load_pretrained", None)
        if load is not None:
            load()


def full_extents(pictures: Num[Tensor, "batch 3 height width"]) -> Extents:
    """Return the extents of pictures without padding."""
    return torch.tensor(pictures.shape[2:], device=pictures.device).expand(len(pictures), 2)


def normalize(pictures: Pictures, like: nn.Module) -> Float[Tensor, "batch 3 height width"]:
    """Return pixels as (x - 127) / 128, the range that EfficientNet-Lite was trained with, in a module's dtype."""
    return (pictures.to(next(like.parameters()).dtype) - 127) / 128


def clip_to_extents(boxes: Float[Tensor, "batch *rest 4"], extents: Extents) -> Float[Tensor, "batch *rest 4"]:
    """Move corners outside of each picture to its edge."""
    shape = (-1,) + (1,) * (boxes.ndim - 2)
    height, width = (side.view(shape).expand(boxes.shape[:-1]) for side in extents.unbind(1))
    return clip_boxes(boxes, height, width)


def select_with_nms(found: ScoredRegions, min_score: float, candidates: int) -> PaddedDetections:
    """Return up to MAX_DETECTIONS class boxes per picture, after NMS within each class."""
    classes = found.scores.shape[2]
    scores = found.scores.flatten(1).float()
    scores = scores.masked_fill(~(scores >= min_score), -torch.inf)  # also NaN
    best, index = scores.topk(min(MAX_CANDIDATES, candidates, scores.shape[1]), dim=1)
    boxes = found.boxes.flatten(1, 2).float().gather(1, index[..., None].expand(-1, -1, 4))
    labels = index % classes
    kept = nms(boxes, best, NMS_IOU, groups=labels)
    # topk sorts by falling score, so kept boxes are the first by a stable sort
    rows = kept.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :MAX_DETECTIONS]
    boxes = boxes.gather(1, rows[..., None].expand(-1, -1, 4))
    return PaddedDetections(boxes, best.gather(1, rows), labels.gather(1, rows), kept.sum(1).clamp_max(MAX_DETECTIONS))
