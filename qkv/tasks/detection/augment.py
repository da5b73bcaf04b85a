"""Random changes of training pictures, on the device of the batch: flip, zoom and shift, color.

The changes are a function of torch's random state, which the training loop sets at every step.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float32
from torch import Tensor
from torch.nn import functional

from qkv.inference.detect import PADDING
from qkv.models.detectors import DetectionBatch
from qkv.models.detectors.base import NO_CLASS, clip_to_extents
from qkv.models.regions import box_area

MIN_VISIBLE = 0.3
"""Share of an object that must stay in the picture; else it is no longer one."""


@dataclass(frozen=True)
class Augmentation:
    """Largest changes."""

    flip: bool = False
    """Whether half of the pictures are mirrored."""
    zoom: float = 1.0
    """Pictures are scaled by a factor from 1 / zoom to zoom, at a random position."""
    color: float = 0.0
    """Brightness, contrast and each color channel change by up to this share."""
    recolor: bool = False
    """Whether color channels are swapped, and half of the pictures inverted: where color says nothing of the class."""

    def __post_init__(self) -> None:
        if not 1 <= self.zoom <= 8:
            raise ValueError(f"zoom must be from 1 to 8, got {self.zoom}")
        if not 0 <= self.color < 1:
            raise ValueError(f"color must be at least 0 and below 1, got {self.color}")

    def apply(self, batch: DetectionBatch) -> DetectionBatch:
        """Return the changed batch."""
        if self.flip or self.zoom > 1:
            batch = _move(batch, *self._draw_moves(batch))
        if self.recolor:
            batch = batch._replace(pictures=_swap_colors(batch.pictures))
        if self.color:
            batch = batch._replace(pictures=_change_tone(batch.pictures, self.color))
        return batch

    def _draw_moves(self, batch: DetectionBatch) -> tuple[Tensor, Tensor]:
        """Return (batch, 2) factors and shifts: a point (x, y) moves to factor * (x, y) + shift."""
        count, device = len(batch.pictures), batch.pictures.device
        scale = self.zoom ** torch.empty(count, device=device).uniform_(-1, 1)
        room = batch.extents.flip(1) * (1 - scale)[:, None]  # below 0: part of the picture is cut off
        shift = torch.rand(count, 2, device=device) * room
        factor = torch.stack([scale, scale], 1)
        mirrored = (torch.rand(count, device=device) < 0.5) & self.flip
        factor[:, 0] = torch.where(mirrored, -scale, scale)
        shift[:, 0] = torch.where(mirrored, shift[:, 0] + scale * batch.extents[:, 1], shift[:, 0])
        return factor, shift


def _move(batch: DetectionBatch, factor: Tensor, shift: Tensor) -> DetectionBatch:
    boxes = _move_boxes(batch.boxes, factor, shift)
    clipped = clip_to_extents(boxes, batch.extents)
    kept = (batch.classes >= 0) & (box_area(clipped) >= MIN_VISIBLE * box_area(boxes))
    proposals = clip_to_extents(_move_boxes(batch.proposals, factor, shift), batch.extents)
    return batch._replace(
        pictures=_move_pixels(batch.pictures, factor, shift),
        boxes=clipped * kept[..., None],
        classes=batch.classes.masked_fill(~kept, NO_CLASS),
        difficult=batch.difficult & kept,
        proposals=proposals * (box_area(batch.proposals) > 0)[..., None],
    )


def _move_boxes(boxes: Float32[Tensor, "batch boxes 4"], factor: Tensor, shift: Tensor) -> Tensor:
    corners = boxes.unflatten(-1, (2, 2)) * factor[:, None, None] + shift[:, None, None]
    return torch.cat([corners.amin(2), corners.amax(2)], -1)


def _move_pixels(pictures: Tensor, factor: Tensor, shift: Tensor) -> Tensor:
    """Sample each pixel where it comes from: (x - shift) / factor."""
    height, width = pictures.shape[2:]
    size = torch.tensor([width, height], device=pictures.device)
    # affine_grid maps -1..1 of the output to -1..1 of the input
    slope = 1 / factor
    offset = ((size / 2 - shift) / factor) * 2 / size - 1
    theta = torch.stack([torch.diag_embed(slope)[:, 0], torch.diag_embed(slope)[:, 1]], 1)
    theta = torch.cat([theta, offset[..., None]], 2)
    with torch.autocast(pictures.device.type, enabled=False):
        grid = functional.affine_grid(theta, list(pictures.shape), align_corners=False)
        moved = functional.grid_sample(pictures.float() - PADDING, grid, align_corners=False)
    return (moved + PADDING).round().clamp(0, 255).to(torch.uint8)


def _swap_colors(pictures: Tensor) -> Tensor:
    """Permute the channels of each picture at random; invert half of the pictures."""
    count = len(pictures)
    order = torch.rand(count, 3, device=pictures.device).argsort(dim=1)[..., None, None]
    swapped = pictures.gather(1, order.expand_as(pictures))
    inverted = torch.rand(count, 1, 1, 1, device=pictures.device) < 0.5
    return torch.where(inverted, 255 - swapped, swapped)


def _change_tone(pictures: Tensor, most: float) -> Tensor:
    """Scale the contrast of each picture and channel, and shift its brightness."""
    shape = (len(pictures), 1, 1, 1)
    gain = 1 + most * torch.empty(len(pictures), 3, 1, 1, device=pictures.device).uniform_(-1, 1)
    contrast = 1 + most * torch.empty(shape, device=pictures.device).uniform_(-1, 1)
    shift = 255 * most / 2 * torch.empty(shape, device=pictures.device).uniform_(-1, 1)
    changed = (pictures.float() - PADDING) * contrast * gain + PADDING + shift
    return changed.round().clamp(0, 255).to(torch.uint8)
