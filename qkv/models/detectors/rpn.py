"""Region proposal network (RPN): at every cell and for every anchor, an objectness and the offsets of a box."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from qkv.models.detectors.base import DetectionBatch, Extents, Proposals, clip_to_extents
from qkv.models.regions import (
    anchor_grid,
    box_area,
    decode_boxes,
    encode_boxes,
    fit_anchor_sizes,
    match_by_iou,
    nms,
    sample_labels,
)
from qkv.models.regions.matching import IGNORED, POSITIVE

POSITIVE_IOU, NEGATIVE_IOU = 0.7, 0.3
SAMPLES = 128
"""Anchors per picture that are trained on, half of them positive."""
NMS_IOU = 0.7
CANDIDATES = 4
"""Candidates that NMS sees, as a multiple of the proposals that are kept."""
MIN_STRIDE = 4
"""On a finer map than this, anchors are at every other cell."""
OFFSET_WEIGHTS = (1.0, 1.0)
BETA = 1 / 9
"""Error below which the box loss is quadratic."""


class AnchorPredictions(NamedTuple):
    """What the network predicts for each anchor."""

    anchors: Float[Tensor, "anchors 4"]
    objectness: Float[Tensor, "batch anchors"]
    """Logits."""
    offsets: Float[Tensor, "batch anchors 4"]


class RegionProposalNetwork(nn.Module):
    """A 3x3 convolution, then objectness and offsets per anchor."""

    sizes: Tensor
    """(anchors, 2): width and height in pixels."""

    def __init__(self, channels: int, anchors: int, stride: int):
        super().__init__()
        step = 2 if stride < MIN_STRIDE else 1
        self.stride = step * stride
        self.hidden = nn.Conv2d(channels, channels, 3, step, padding=1)
        self.objectness = nn.Conv2d(channels, anchors, 1)
        self.offsets = nn.Conv2d(channels, 4 * anchors, 1)
        for layer in (self.hidden, self.objectness, self.offsets):
            nn.init.normal_(layer.weight, std=0.01)
            layer.bias.data.zero_()  # type: ignore[union-attr]
        sides = 4 * self.stride * 2 ** (torch.arange(anchors) / 2)
        self.register_buffer("sizes", torch.stack([sides, sides], 1))

    def fit(self, sizes: Float[Tensor, "boxes 2"]) -> None:
        """Set the anchors by k-means of the training boxes."""
        self.sizes.copy_(fit_anchor_sizes(sizes, len(self.sizes)))

    def forward(self, features: Float[Tensor, "batch channels rows columns"]) -> AnchorPredictions:
        """Return the predictions of all anchors: by row, column, then size."""
        hidden = self.hidden(features).relu()
        objectness = self.objectness(hidden).movedim(1, -1).flatten(1)
        offsets = self.offsets(hidden).movedim(1, -1).flatten(1).unflatten(1, (-1, 4))
        anchors = anchor_grid(self.sizes, hidden.shape[2], hidden.shape[3], self.stride)
        return AnchorPredictions(anchors, objectness.float(), offsets.float())

    @torch.no_grad()
    def propose(self, found: AnchorPredictions, extents: Extents, count: int) -> Proposals:
        """Return the boxes with the highest objectness after NMS, zeros where there are fewer than `count`."""
        scores = found.objectness.masked_fill(~_inside(found.anchors, extents), -torch.inf)
        best, index = scores.topk(min(CANDIDATES * count, scores.shape[1]), dim=1)
        offsets = found.offsets.gather(1, index[..., None].expand(-1, -1, 4))
        boxes = clip_to_extents(decode_boxes(offsets, found.anchors[index], OFFSET_WEIGHTS), extents)
        best = best.masked_fill((box_area(boxes) <= 1) | best.isnan(), -torch.inf)
        kept = nms(boxes, best, NMS_IOU)
        first = kept.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :count]
        chosen = boxes.gather(1, first[..., None].expand(-1, -1, 4))
        return chosen * kept.gather(1, first)[..., None]

    def loss(self, found: AnchorPredictions, batch: DetectionBatch) -> Float[Tensor, ""]:
        """Return the losses of objectness and boxes of sampled anchors, summed over pictures."""
        anchors = found.anchors.expand(len(batch.pictures), -1, -1)
        labels, nearest = match_by_iou(
            anchors, batch.boxes, batch.classes >= 0,
            high=POSITIVE_IOU, low=NEGATIVE_IOU, is_difficult=batch.difficult, keep_best=True,
        )  # fmt: skip
        labels = labels.masked_fill(~_inside(found.anchors, batch.extents), IGNORED)
        sampled = sample_labels(labels, SAMPLES, 0.5, torch.rand(labels.shape, device=labels.device))
        positive = sampled & (labels == POSITIVE)
        entropy = functional.binary_cross_entropy_with_logits(
            found.objectness, positive.float(), weight=sampled.float(), reduction="none"
        )
        error = self._box_error(found, batch, anchors, nearest, positive)
        return ((entropy + error).sum(1) / sampled.sum(1).clamp_min(1)).sum()

    def _box_error(
        self, found: AnchorPredictions, batch: DetectionBatch, anchors: Tensor, nearest: Tensor, positive: Tensor
    ) -> Tensor:
        """Return the smooth L1 error of each positive anchor, (batch, anchors)."""
        if not batch.boxes.shape[1]:
            return torch.zeros_like(found.objectness)
        boxes = batch.boxes.gather(1, nearest[..., None].expand(-1, -1, 4))
        boxes = torch.where(positive[..., None], boxes, anchors)  # the offsets of an empty box are not finite
        wanted = encode_boxes(boxes, anchors, OFFSET_WEIGHTS)
        return functional.smooth_l1_loss(found.offsets, wanted, beta=BETA, reduction="none").sum(-1) * positive


def _inside(anchors: Tensor, extents: Extents) -> Tensor:
    """Return whether the center of each anchor lies in the picture, not in its padding: (batch, anchors)."""
    x, y = (anchors[:, :2] + anchors[:, 2:]).unbind(1)
    return (y < 2 * extents[:, :1]) & (x < 2 * extents[:, 1:])
