"""The loss of DETR: match queries to objects one to one, then compare each pair."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn import functional

from qkv.models.detectors.base import NO_CLASS, DetectionBatch
from qkv.models.detectors.query_decoder import Predictions
from qkv.models.regions import generalized_iou, iou, match_one_to_one_batched

CLASS_WEIGHT = 2.0
DISTANCE_WEIGHT = 5.0
OVERLAP_WEIGHT = 2.0
ALPHA = 0.25
"""Weight of positives in the matching cost."""
GAMMA = 2.0
NEGATIVE_WEIGHT = 0.75
"""Weight of negatives in the class loss."""

Measure = Callable[[Tensor, Tensor], Tensor]


class Targets(NamedTuple):
    """Objects of each picture."""

    boxes: Float[Tensor, "batch objects 4"]
    """Center and size as shares of the picture."""
    classes: Int64[Tensor, "batch objects"]
    is_object: Bool[Tensor, "batch objects"]
    counts: Bool[Tensor, "batch objects"]
    """False for difficult objects and for padding."""


def targets_of(batch: DetectionBatch) -> Targets:
    """Return the objects of a batch, with boxes relative to each picture's size."""
    if not batch.boxes.shape[1]:
        batch = _with_one_absent(batch)
    size = batch.extents.flip(1).float()[:, None]  # width, height
    low, high = batch.boxes[..., :2] / size, batch.boxes[..., 2:] / size
    present = batch.classes >= 0
    boxes = torch.cat([(low + high) / 2, high - low], -1)
    return Targets(boxes, batch.classes.clamp_min(0), present, present & ~batch.difficult)


def _with_one_absent(batch: DetectionBatch) -> DetectionBatch:
    """Return a batch without objects with room for one."""
    boxes, classes = functional.pad(batch.boxes, (0, 0, 0, 1)), functional.pad(batch.classes, (0, 1), value=NO_CLASS)
    return batch._replace(boxes=boxes, classes=classes, difficult=torch.zeros_like(classes, dtype=torch.bool))


def corners(boxes: Float[Tensor, "*rows 4"]) -> Float[Tensor, "*rows 4"]:
    """Return (x1, y1, x2, y2) of boxes given by center and size."""
    center, half = boxes[..., :2], boxes[..., 2:] / 2
    return torch.cat([center - half, center + half], -1)


def set_loss(found: Predictions, targets: Targets, groups: int) -> Float[Tensor, ""]:
    """Return the loss of all layers and groups, averaged over them and summed over pictures and objects."""
    layers = len(found.logits)
    # one row per layer, picture and group
    logits, boxes = (x.unflatten(2, (groups, -1)).flatten(0, 2) for x in found)
    wanted = Targets(*(x[None, :, None].expand(layers, -1, groups, *x.shape[1:]).flatten(0, 2) for x in targets))
    query = match_one_to_one_batched(matching_cost(logits, boxes, wanted), wanted.is_object)
    own = query[..., None] == torch.arange(logits.shape[1], device=query.device)  # [rows, objects, queries]
    given = Given.from_objects(wanted, own.any(1), own.to(torch.uint8).argmax(1))
    return given_loss(logits, boxes, given).sum() / (layers * groups)


class Given(NamedTuple):
    """What each query (or token) is to find."""

    positive: Bool[Tensor, "rows queries"]
    ignored: Bool[Tensor, "rows queries"]
    """Queries of difficult objects: they count neither way."""
    classes: Int64[Tensor, "rows queries"]
    boxes: Float[Tensor, "rows queries 4"]

    @classmethod
    def from_objects(cls, targets: Targets, matched: Tensor, which: Tensor) -> "Given":
        """Give the matched queries the objects with the indices `which`."""
        counts = targets.counts.gather(1, which)
        boxes = targets.boxes.gather(1, which[..., None].expand(-1, -1, 4))
        return cls(matched & counts, matched & ~counts, targets.classes.gather(1, which), boxes)


def given_loss(
    logits: Float[Tensor, "rows queries classes"], boxes: Float[Tensor, "rows queries 4"], given: Given
) -> Float[Tensor, "rows queries"]:
    """Return the loss of each query: varifocal for its class, and L1 + generalized IoU for the box of a positive.

    The target of a positive's class is the IoU of its box, so that the best box of an object has the best score.
    """
    positive = given.positive[..., None]
    # a query without an object is compared with its own box: no loss, no gradient
    wanted = torch.where(positive, given.boxes, boxes.detach())
    pairs = corners(boxes), corners(wanted)
    distance = (boxes - wanted).abs().sum(-1)
    box_loss = DISTANCE_WEIGHT * distance + OVERLAP_WEIGHT * (1 - _paired(generalized_iou, *pairs))
    quality = _paired(iou, *pairs).detach().clamp(0, 1)[..., None]
    is_class = positive & (given.classes[..., None] == torch.arange(logits.shape[2], device=logits.device))
    weight = torch.where(is_class, quality, NEGATIVE_WEIGHT * logits.detach().sigmoid() ** GAMMA)
    entropy = functional.binary_cross_entropy_with_logits(logits, quality * is_class, weight, reduction="none")
    class_loss = entropy.sum(-1).masked_fill(given.ignored, 0)
    return CLASS_WEIGHT * class_loss + box_loss.masked_fill(~given.positive, 0)


@torch.no_grad()
def matching_cost(
    logits: Float[Tensor, "rows queries classes"], boxes: Float[Tensor, "rows queries 4"], targets: Targets
) -> Float[Tensor, "rows queries objects"]:
    """Return the cost of every pair: focal cost of the class, L1 distance, generalized IoU."""
    p = logits.sigmoid().gather(2, targets.classes[:, None].expand(-1, logits.shape[1], -1))
    positive = ALPHA * (1 - p) ** GAMMA * -(p + 1e-8).log()
    negative = (1 - ALPHA) * p**GAMMA * -(1 - p + 1e-8).log()
    distance = (boxes[:, :, None] - targets.boxes[:, None]).abs().sum(-1)
    overlap = generalized_iou(corners(boxes), corners(targets.boxes))
    return CLASS_WEIGHT * (positive - negative) + DISTANCE_WEIGHT * distance - OVERLAP_WEIGHT * overlap


def _paired(measure: Measure, boxes: Tensor, others: Tensor) -> Tensor:
    """Return the measure of box i and other box i."""
    return measure(boxes[..., None, :], others[..., None, :])[..., 0, 0]
