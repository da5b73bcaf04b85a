"""Boxes: corners (x1, y1, x2, y2) in pixels. Pixel edges count from 0, so the width is x2 - x1."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

Boxes = Float[Tensor, "*rows boxes 4"]
OtherBoxes = Float[Tensor, "*rows others 4"]
Offsets = Float[Tensor, "*rows boxes 4"]
Overlaps = Float[Tensor, "*rows boxes others"]

OFFSET_WEIGHTS = (10.0, 5.0)
"""Factors of the offsets of centers and of sizes, as in Fast R-CNN: 1 / their usual spread."""
MAX_LOG_SCALE = math.log(1000 / 16)
"""Largest log of a size ratio that `decode` applies; an untrained head could otherwise overflow exp."""


def box_area(boxes: Boxes) -> Float[Tensor, "*rows boxes"]:
    """Return (x2 - x1) (y2 - y1); 0 if the corners are in the wrong order."""
    return (boxes[..., 2:] - boxes[..., :2]).clamp_min(0).prod(-1)


def iou(boxes: Boxes, others: OtherBoxes) -> Overlaps:
    """Return intersection over union of every pair; 0 if both boxes are empty."""
    inter = _intersection(boxes, others)
    union = box_area(boxes)[..., :, None] + box_area(others)[..., None, :] - inter
    return _divide(inter, union)


def generalized_iou(boxes: Boxes, others: OtherBoxes) -> Overlaps:
    """Return IoU - (hull - union) / hull of every pair, where hull is the smallest box around both.

    In -1..1. Unlike IoU it has a gradient when the boxes do not overlap.
    """
    inter = _intersection(boxes, others)
    union = box_area(boxes)[..., :, None] + box_area(others)[..., None, :] - inter
    low = torch.minimum(boxes[..., :, None, :2], others[..., None, :, :2])
    high = torch.maximum(boxes[..., :, None, 2:], others[..., None, :, 2:])
    hull = (high - low).clamp_min(0).prod(-1)
    return _divide(inter, union) - _divide(hull - union, hull)


def encode_boxes(boxes: Boxes, anchors: Boxes, weights: tuple[float, float] = OFFSET_WEIGHTS) -> Offsets:
    """Return the offsets that `decode_boxes` adds to the anchors to get the boxes.

    (dx, dy) = weights[0] (center - anchor center) / anchor size,   (dw, dh) = weights[1] log(size / anchor size)
    """
    size, anchor_size = boxes[..., 2:] - boxes[..., :2], anchors[..., 2:] - anchors[..., :2]
    shift = (boxes[..., :2] + size / 2 - anchors[..., :2] - anchor_size / 2) / anchor_size
    return torch.cat([shift * weights[0], (size / anchor_size).log() * weights[1]], -1)


def decode_boxes(offsets: Offsets, anchors: Boxes, weights: tuple[float, float] = OFFSET_WEIGHTS) -> Boxes:
    """Return the boxes that `encode_boxes` would give these offsets; size ratios stop at 1000 / 16."""
    shift, log_scale = offsets[..., :2] / weights[0], offsets[..., 2:] / weights[1]
    anchor_size = anchors[..., 2:] - anchors[..., :2]
    center = anchors[..., :2] + anchor_size / 2 + shift * anchor_size
    half = log_scale.clamp_max(MAX_LOG_SCALE).exp() * anchor_size / 2
    return torch.cat([center - half, center + half], -1)


def clip_boxes(boxes: Boxes, height: float | Tensor, width: float | Tensor) -> Boxes:
    """Move corners outside of the picture to its edge; a size is a number, or a tensor like `boxes[..., 0]`."""
    x = boxes[..., 0::2]
    y = boxes[..., 1::2]
    x = _clip(x, width)
    y = _clip(y, height)
    return torch.stack([x[..., 0], y[..., 0], x[..., 1], y[..., 1]], -1)


def _clip(x: Tensor, most: float | Tensor) -> Tensor:
    if isinstance(most, Tensor):
        return torch.minimum(x.clamp_min(0), most[..., None].to(x.dtype))
    return x.clamp(0, most)


def _intersection(boxes: Tensor, others: Tensor) -> Tensor:
    low = torch.maximum(boxes[..., :, None, :2], others[..., None, :, :2])
    high = torch.minimum(boxes[..., :, None, 2:], others[..., None, :, 2:])
    return (high - low).clamp_min(0).prod(-1)


def _divide(top: Tensor, bottom: Tensor) -> Tensor:
    """Return top / bottom, and 0 where bottom is 0."""
    empty = bottom <= 0
    return torch.where(empty, 0.0, top / torch.where(empty, 1.0, bottom))
