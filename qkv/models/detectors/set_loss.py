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
    rows = query.clamp_min(0)
    matched = boxes.gather(1, rows[..., None].expand(-1, -1, 4))
    counts = wanted.counts.float()
    # a padded object has an empty box: compare it with itself, which gives zero loss and zero gradient
    pairs = corners(torch.where(wanted.is_object[..., None], matched, wanted.boxes)), corners(wanted.boxes)
    distance = (matched - wanted.boxes).abs().sum(-1)
    overlap = _paired(generalized_iou, *pairs)
    box_loss = (DISTANCE_WEIGHT * distance + OVERLAP_WEIGHT * (1 - overlap)) * counts
    quality = _paired(iou, *pairs).detach().clamp(0, 1)
    class_loss = _class_loss(logits, rows, quality, wanted)
    return (box_loss.sum() + CLASS_WEIGHT * class_loss) / (layers * groups)


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


def _class_loss(logits: Tensor, query: Tensor, quality: Tensor, targets: Targets) -> Float[Tensor, ""]:
    """Return the varifocal loss: the target of a matched query is its IoU, that of all others 0.

    A query that is matched to a difficult object counts neither way.
    """
    queries, classes = logits.shape[1:]
    own = (query[..., None] == torch.arange(queries, device=query.device)) & targets.is_object[..., None]
    matched, which = own.any(1), own.to(torch.uint8).argmax(1)  # [rows, queries]
    ignored = matched & ~targets.counts.gather(1, which)
    is_class = targets.classes.gather(1, which)[..., None] == torch.arange(classes, device=query.device)
    positive = matched[..., None] & is_class
    wanted = quality.gather(1, which)[..., None] * positive
    p = logits.detach().sigmoid()
    weight = torch.where(positive, wanted, NEGATIVE_WEIGHT * p**GAMMA)
    entropy = functional.binary_cross_entropy_with_logits(logits, wanted, weight, reduction="none")
    return (entropy.sum(-1) * ~ignored).sum()


def _paired(measure: Measure, boxes: Tensor, others: Tensor) -> Tensor:
    """Return the measure of box i and other box i."""
    return measure(boxes[..., None, :], others[..., None, :])[..., 0, 0]
