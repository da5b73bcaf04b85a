"""Detectors that classify proposed regions: R-CNN, Fast R-CNN, Faster R-CNN."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn import functional

from qkv.errors import unknown_name_error
from qkv.models.detectors.base import (
    Clock,
    DetectionBatch,
    Detector,
    Extents,
    Proposals,
    ScoredRegions,
    clip_to_extents,
    ignore_time,
)
from qkv.models.regions import box_area, decode_boxes, encode_boxes, match_by_iou, roi_align, roi_pool, sample_labels
from qkv.models.regions.matching import IGNORED, POSITIVE
from qkv.models.validation import require_at_least

POSITIVE_IOU = 0.5


@dataclass(frozen=True)
class RegionConfig:
    """Settings of a detector that classifies regions."""

    backbone: str = "small"
    """small, wide, contrast and wide-contrast (blind to color), or lite0: EfficientNet-Lite0, trained on ImageNet."""
    pool: int = 6
    """Rows and columns of the features of a region."""
    hidden_dim: int = 128
    """Units of the two hidden layers that see the features of a region."""
    samples: int = 32
    """Regions per picture that are trained on."""
    positive_share: float = 0.5
    """Largest share of them that is an object."""

    def __post_init__(self) -> None:
        require_at_least(1, self, "pool", "hidden_dim", "samples")
        if not 0 < self.positive_share <= 1:
            raise ValueError(f"positive_share must be above 0 and at most 1, got {self.positive_share}")


def make_hidden_layers(channels: int, config: RegionConfig) -> nn.Sequential:
    """Return the layers from the pooled features of a region to its hidden features."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(channels * config.pool**2, config.hidden_dim), nn.ReLU(),
        nn.Linear(config.hidden_dim, config.hidden_dim), nn.ReLU(),
    )  # fmt: skip


class RegionHead(nn.Module):
    """Class logits of a region (the last is background) and a box per class."""

    def __init__(self, channels: int, config: RegionConfig, classes: int):
        super().__init__()
        self.hidden = make_hidden_layers(channels, config)
        self.classes = nn.Linear(config.hidden_dim, classes + 1)
        self.offsets = nn.Linear(config.hidden_dim, 4 * classes)
        nn.init.normal_(self.offsets.weight, std=0.001)  # boxes start at their regions
        nn.init.zeros_(self.offsets.bias)

    def forward(self, pooled: Float[Tensor, "batch regions channels rows columns"]) -> tuple[Tensor, Tensor]:
        """Return logits (batch, regions, classes + 1) and offsets (batch, regions, classes, 4)."""
        hidden = self.hidden(pooled.flatten(0, 1)).unflatten(0, pooled.shape[:2])
        return self.classes(hidden), self.offsets(hidden).unflatten(-1, (-1, 4))


class SampledRegions(NamedTuple):
    """Regions sampled for training: a fixed number per picture."""

    boxes: Float[Tensor, "batch samples 4"]
    used: Bool[Tensor, "batch samples"]
    """False for padding: a picture may have fewer regions than are sampled."""
    positive: Bool[Tensor, "batch samples"]
    objects: Float[Tensor, "batch samples 4"]
    """Box of the nearest object."""
    classes: Int64[Tensor, "batch samples"]
    """Class of the nearest object."""


def sample_regions(batch: DetectionBatch, proposals: Proposals, count: int, positive_share: float) -> SampledRegions:
    """Sample positive (IoU >= 0.5 with an object) and negative regions among the proposals and the true boxes."""
    candidates = torch.cat([proposals, batch.boxes], 1)
    is_object = batch.classes >= 0
    labels, nearest = match_by_iou(
        candidates, batch.boxes, is_object, high=POSITIVE_IOU, low=POSITIVE_IOU, is_difficult=batch.difficult
    )
    labels = labels.masked_fill(box_area(candidates) <= 0, IGNORED)
    noise = torch.rand(labels.shape, device=labels.device)
    chosen = sample_labels(labels, count, positive_share, noise)
    rows = chosen.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :count]
    near = nearest.gather(1, rows)
    used = chosen.gather(1, rows)
    return SampledRegions(
        gather_boxes(candidates, rows),
        used,
        used & (labels.gather(1, rows) == POSITIVE),
        gather_boxes(batch.boxes, near) if batch.boxes.shape[1] else gather_boxes(candidates, rows),
        batch.classes.gather(1, near) if batch.boxes.shape[1] else torch.zeros_like(near),
    )


def gather_boxes(boxes: Float[Tensor, "batch boxes 4"], rows: Int64[Tensor, "batch rows"]) -> Tensor:
    """Return the boxes with these indices, (batch, rows, 4)."""
    return boxes.gather(1, rows[..., None].expand(-1, -1, 4))


def class_loss(logits: Tensor, sampled: SampledRegions) -> Float[Tensor, ""]:
    """Return the cross entropy per region, summed over pictures."""
    targets = torch.where(sampled.positive, sampled.classes, logits.shape[-1] - 1)
    entropy = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
    return _mean_over_regions(entropy.view_as(targets) * sampled.used, sampled)


def box_loss(offsets: Tensor, sampled: SampledRegions) -> Float[Tensor, ""]:
    """Return the smooth L1 error of the boxes of positives, per region, summed over pictures."""
    own = sampled.classes.clamp_min(0)[..., None, None].expand(-1, -1, 1, 4)
    wanted = encode_boxes(_with_area(sampled.objects, sampled), _with_area(sampled.boxes, sampled))
    error = functional.smooth_l1_loss(offsets.float().gather(2, own)[:, :, 0], wanted, reduction="none").sum(-1)
    return _mean_over_regions(error * sampled.positive, sampled)


def _mean_over_regions(values: Tensor, sampled: SampledRegions) -> Tensor:
    return (values.sum(1) / sampled.used.sum(1).clamp_min(1)).sum()


def _with_area(boxes: Tensor, sampled: SampledRegions) -> Tensor:
    """Replace the boxes of negatives by a unit box, so that their offsets are finite."""
    return torch.where(sampled.positive[..., None], boxes, boxes.new_tensor([0.0, 0.0, 1.0, 1.0]))


class RegionDetector(Detector):
    """A detector whose parts are features, proposals and the scores of regions."""

    def propose(self, features: Any, extents: Extents, proposals: Proposals) -> Proposals:
        """Return the regions to classify, zeros where there is none; here: those that were given."""
        return proposals

    @abstractmethod
    def score(self, features: Any, extents: Extents, proposals: Proposals) -> ScoredRegions:
        """Return boxes and class scores of regions."""

    def regions(
        self, features: Any, extents: Extents, proposals: Proposals, clock: Clock = ignore_time
    ) -> ScoredRegions:
        """Propose regions, then score them."""
        proposed = self.propose(features, extents, proposals)
        clock("proposals")
        return self.score(features, extents, proposed)


def scored_by_softmax(logits: Tensor, offsets: Tensor, proposals: Proposals, extents: Extents) -> ScoredRegions:
    """Return class probabilities, without background, and the decoded boxes."""
    classes = offsets.shape[2]
    anchors = proposals[:, :, None].expand(-1, -1, classes, -1)
    boxes = clip_to_extents(decode_boxes(offsets.float(), anchors), extents)
    empty = box_area(proposals) <= 0
    return ScoredRegions(boxes, logits.float().softmax(-1)[..., :-1].masked_fill(empty[..., None], -torch.inf))


def make_pooling(name: str, bin_samples: int) -> Callable[..., Tensor]:
    """Return `roi_pool` or `roi_align` by name; only alignment samples points."""
    poolings: dict[str, Callable[..., Tensor]] = {"max": roi_pool, "align": partial(roi_align, samples=bin_samples)}
    if name not in poolings:
        raise unknown_name_error("pooling", name, poolings)
    return poolings[name]
