"""Scenes: MNIST digits on cluttered canvases, for object detection.

A scene is a pure function of (seed, split, number); nothing is stored. Train, valid and test scenes use the digits of
the split of the same name, so no digit is in two splits. A scene has

- a smooth ground of random colors, and Gaussian noise;
- 12 to 24 distractors: bars, arcs, blobs, and pieces of digits with less than half of the digit's ink;
- 1 to 6 digits on top, from 1/8 to 7/16 of the canvas, with an IoU of at most 0.3.

The box of a digit is the tight box of its ink. A digit that is less than 60 % visible is marked difficult.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float32, Int64, UInt8
from torch import Tensor
from torch.nn import functional

from qkv.data.dataset_registry import register_dataset
from qkv.data.labeled import LabeledExamples
from qkv.random import derive_seed, uniforms

MAX_DIGITS = 6
TRIES = 12
"""Positions drawn for a digit; without a free one among them, the digit is left out."""
SHAPES, PIECES = 18, 6
MIN_DISTRACTORS = 12
INK = 0.2
"""Opacity from which a pixel belongs to the box of a digit."""
MIN_VISIBLE = 0.6
MAX_IOU = 0.3
NOISE = 0.03
NO_CLASS = -1

Levels = Float32[Tensor, "batch layers height width"]


class SceneBatch(NamedTuple):
    """Scenes with their boxes."""

    pictures: UInt8[Tensor, "batch 3 height width"]
    boxes: Float32[Tensor, "batch objects 4"]
    """Corners (x1, y1, x2, y2); zeros where there is no object."""
    classes: Int64[Tensor, "batch objects"]
    """The digit; -1 where there is no object."""
    difficult: Bool[Tensor, "batch objects"]


@register_dataset("scenes")
@dataclass(frozen=True)
class Scenes:
    """Scenes: MNIST digits on cluttered canvases, with boxes, for object detection."""

    size: int = 96
    """Width and height of the canvas."""

    def __post_init__(self) -> None:
        if self.size < 32:
            raise ValueError(f"size must be at least 32, got {self.size}")

    def examples(self, digits: LabeledExamples, seed: int, split: str, numbers: Int64[Tensor, " batch"]) -> SceneBatch:
        """Return the scenes with these numbers, on the device of `numbers`; `digits` are those of the split."""
        draw = _Stream(derive_seed(seed, f"scenes {split}"), numbers)
        picture = _ground(draw, self.size)
        levels, colors = _distractors(draw, digits, self.size, picture)
        picture = _paint(picture, levels, colors)
        placed = _place_digits(draw, digits, self.size)
        picture = _paint(picture, placed.levels, _contrasting(draw, picture, placed.centers))
        picture = picture + NOISE * draw.normal(*picture.shape[1:])
        boxes, visible = _tight_boxes(placed.levels), _visible_share(placed.levels)
        found = (placed.classes != NO_CLASS) & boxes.any(-1)  # a very small digit may have no ink left
        return SceneBatch(
            (picture.clamp(0, 1) * 255).round().to(torch.uint8),
            boxes * found[..., None],
            placed.classes.masked_fill(~found, NO_CLASS),
            found & (visible < MIN_VISIBLE),
        )


class _Stream:
    """Random numbers of each scene, one after the other."""

    def __init__(self, key: int, numbers: Int64[Tensor, " batch"]):
        self.key, self.first, self.used = key, numbers << 32, 0

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Return (batch, *shape) numbers in low..high."""
        count = math.prod(shape)
        index = self.first[:, None] + self.used + torch.arange(count, device=self.first.device)
        self.used += count
        return (low + (high - low) * uniforms(self.key, index)).float().unflatten(1, shape)

    def integer(self, *shape: int, below: int) -> Tensor:
        """Return (batch, *shape) whole numbers from 0."""
        return (self.uniform(*shape) * below).long().clamp_max(below - 1)

    def normal(self, *shape: int) -> Tensor:
        """Return (batch, *shape) numbers of the normal distribution (Box-Muller)."""
        radius = (-2 * (1 - self.uniform(*shape)).clamp_min(1e-7).log()).sqrt()
        return radius * (2 * math.pi * self.uniform(*shape)).cos()


class _Placed(NamedTuple):
    levels: Levels
    """Opacity of each digit at each pixel."""
    centers: Float32[Tensor, "batch objects 2"]
    classes: Int64[Tensor, "batch objects"]


def _ground(draw: _Stream, size: int) -> Float32[Tensor, "batch 3 size size"]:
    """Return a smooth picture: one color, varied by 4 x 4 random ones."""
    colors = draw.uniform(3, 1, 1) * 0.6 + draw.uniform(3, 4, 4) * 0.4
    return functional.interpolate(colors, size=(size, size), mode="bilinear", align_corners=True)


def _paint(picture: Tensor, levels: Levels, colors: Float32[Tensor, "batch layers 3"]) -> Tensor:
    """Paint layers over a picture, the last on top."""
    for level, color in zip(levels.unbind(1), colors.unbind(1), strict=True):
        picture = torch.lerp(picture, color[..., None, None].expand_as(picture), level[:, None])
    return picture


def _contrasting(draw: _Stream, picture: Tensor, centers: Tensor) -> Float32[Tensor, "batch layers 3"]:
    """Return random colors that differ from the picture at the centers by 0.4 or more in some channel."""
    size = picture.shape[-1]
    x, y = centers.long().clamp(0, size - 1).unbind(-1)
    batch = torch.arange(len(picture), device=picture.device)[:, None]
    ground = picture[batch, :, y, x]
    color = draw.uniform(centers.shape[1], 3)
    near = ((color - ground).abs().amax(-1, keepdim=True) < 0.4).float()
    return color + near * torch.where(ground < 0.5, 0.5, -0.5)


def _distractors(draw: _Stream, digits: LabeledExamples, size: int, picture: Tensor) -> tuple[Levels, Tensor]:
    """Return opacities and colors of shapes and pieces of digits."""
    shapes, centers = _shapes(draw, size)
    pieces, piece_centers = _pieces(draw, digits, size)
    levels, centers = torch.cat([shapes, pieces], 1), torch.cat([centers, piece_centers], 1)
    total = SHAPES + PIECES
    count = MIN_DISTRACTORS + draw.integer(1, below=total - MIN_DISTRACTORS + 1)
    rank = draw.uniform(total).argsort(dim=1).argsort(dim=1)
    levels = levels * (rank < count)[..., None, None]
    return levels, _contrasting(draw, picture, centers).clamp(0, 1)


def _shapes(draw: _Stream, size: int) -> tuple[Levels, Tensor]:
    """Return bars, blobs and arcs: a third of the layers each."""
    each = SHAPES // 3
    center = draw.uniform(SHAPES, 2) * size
    angle = draw.uniform(SHAPES, 1, 1) * 2 * math.pi
    long = (size / 24 * 4.0 ** draw.uniform(SHAPES, 1, 1)).clamp_min(2)
    short = long * draw.uniform(SHAPES, 1, 1, low=0.12, high=0.35)
    pixel = torch.arange(size, device=center.device) + 0.5
    dx, dy = pixel - center[..., 0, None, None], pixel[:, None] - center[..., 1, None, None]
    u, v = dx * angle.cos() + dy * angle.sin(), dy * angle.cos() - dx * angle.sin()
    bar, blob, arc = (slice(i * each, (i + 1) * each) for i in range(3))
    distance = torch.empty(u.shape, device=u.device)
    distance[:, bar] = torch.maximum(u.abs() - long, v.abs() - short)[:, bar]
    round_short = (short * 2)[:, blob]
    distance[:, blob] = (
        (u[:, blob] / long[:, blob]) ** 2 + (v[:, blob] / round_short) ** 2
    ).sqrt() * round_short - round_short
    ring = (torch.hypot(u, v) - long).abs() - short / 2
    distance[:, arc] = torch.maximum(ring, -u - long / 3)[:, arc]  # the part of a ring on one side
    return (0.5 - distance).clamp(0, 1), center


def _pieces(draw: _Stream, digits: LabeledExamples, size: int) -> tuple[Levels, Tensor]:
    """Return digits of which a straight cut leaves 20 to 45 % of the ink."""
    images = _images(digits, draw.integer(PIECES, below=len(digits)), smooth=None)
    angle, share = draw.uniform(PIECES, 1, 1) * 2 * math.pi, draw.uniform(PIECES, 1, low=0.2, high=0.45)
    line = torch.arange(28, device=angle.device) - 13.5
    place = (line * angle.cos() + line[:, None] * angle.sin()).flatten(2)  # position across the cut
    order = place.argsort(dim=-1)
    ink = images.flatten(2).gather(-1, order)
    kept = ink.cumsum(-1) <= share * ink.sum(-1, keepdim=True)
    mask = torch.zeros_like(kept).scatter(-1, order, kept)
    side = _sides(draw, PIECES, size)
    corner = draw.uniform(PIECES, 2) * (size - side[..., None])
    return _render(images * mask.view_as(images), corner, side, size), corner + side[..., None] / 2


def _place_digits(draw: _Stream, digits: LabeledExamples, size: int) -> _Placed:
    """Draw digits and find free positions for them, one digit after the other."""
    ids = draw.integer(MAX_DIGITS, below=len(digits))
    side = _sides(draw, MAX_DIGITS, size)
    tries = draw.uniform(MAX_DIGITS, TRIES, 2) * (size - side[..., None, None])
    wanted = torch.arange(MAX_DIGITS, device=ids.device) <= draw.integer(1, below=MAX_DIGITS)
    images = _images(digits, ids, smooth=side < 20)
    low, high = _ink_extent(images)
    boxes = torch.zeros(*ids.shape, 4, device=ids.device)
    corners = torch.zeros(*ids.shape, 2, device=ids.device)
    found = torch.zeros_like(wanted)
    for k in range(MAX_DIGITS):
        offset, extent = low[:, k] * side[:, k, None], (high - low)[:, k] * side[:, k, None]
        start = tries[:, k] + offset[:, None]
        candidates = torch.cat([start, start + extent[:, None]], -1)  # [batch, tries, 4]
        free = (_overlap(candidates, boxes) <= MAX_IOU).all(-1)
        first = free.to(torch.uint8).argmax(1)[:, None, None]
        found[:, k] = wanted[:, k] & free.any(1)
        boxes[:, k] = candidates.gather(1, first.expand(-1, -1, 4))[:, 0] * found[:, k, None]
        corners[:, k] = tries[:, k].gather(1, first.expand(-1, -1, 2))[:, 0]
    levels = _render(images, corners, side, size) * found[..., None, None]
    labels = digits.labels.to(ids.device)[ids]
    return _Placed(levels, corners + side[..., None] / 2, torch.where(found, labels, NO_CLASS))


def _sides(draw: _Stream, count: int, size: int) -> Float32[Tensor, "batch count"]:
    """Return sides that are log-uniform from 1/8 to 7/16 of the canvas."""
    return size / 8 * 3.5 ** draw.uniform(count)


def _images(digits: LabeledExamples, ids: Tensor, smooth: Tensor | None) -> Float32[Tensor, "batch count 28 28"]:
    """Return digits as opacities; those to be drawn small are smoothed, or bilinear samples would miss strokes."""
    images = digits.inputs.to(ids.device)[ids].float()[:, :, 0] / 255
    if smooth is None:
        return images
    return torch.where(smooth[..., None, None], functional.avg_pool2d(images, 3, 1, 1), images)


def _ink_extent(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the corners of the ink as shares of the side, (batch, count, 2) each: x, y."""
    spread = [images.amax(axis) > INK for axis in (-2, -1)]
    low = [ink.to(torch.uint8).argmax(-1) for ink in spread]
    high = [28 - ink.flip(-1).to(torch.uint8).argmax(-1) for ink in spread]
    return torch.stack(low, -1) / 28, torch.stack(high, -1) / 28


def _render(images: Tensor, corner: Tensor, side: Tensor, size: int) -> Levels:
    """Draw square images with their upper left corner at `corner`, resized to `side` pixels."""
    pixel = torch.arange(size, device=corner.device) + 0.5
    x, y = (2 * (pixel - corner[..., axis, None]) / side[..., None] - 1 for axis in (0, 1))
    grid = torch.stack(torch.broadcast_tensors(x[..., None, :], y[..., :, None]), -1)
    drawn = functional.grid_sample(images.flatten(0, 1)[:, None], grid.flatten(0, 1), align_corners=False)
    return drawn[:, 0].unflatten(0, images.shape[:2])


def _overlap(boxes: Tensor, others: Tensor) -> Tensor:
    """Return the IoU of every pair, (batch, boxes, others)."""
    extent = torch.minimum(boxes[..., None, 2:], others[:, None, :, 2:]) - torch.maximum(
        boxes[..., None, :2], others[:, None, :, :2]
    )
    inter = extent.clamp_min(0).prod(-1)
    area, other_area = ((x[..., 2:] - x[..., :2]).prod(-1) for x in (boxes, others))
    return inter / (area[..., None] + other_area[:, None] - inter)


def _tight_boxes(levels: Levels) -> Float32[Tensor, "batch layers 4"]:
    """Return the box of pixels above INK; zeros if there is none."""
    size = levels.shape[-1]
    x, y = (levels.amax(axis) > INK for axis in (-2, -1))
    low = [ink.to(torch.uint8).argmax(-1) for ink in (x, y)]
    high = [size - ink.flip(-1).to(torch.uint8).argmax(-1) for ink in (x, y)]
    return torch.stack([*low, *high], -1).float() * x.any(-1, keepdim=True)


def _visible_share(levels: Levels) -> Float32[Tensor, "batch layers"]:
    """Return the share of each layer's ink that later layers leave visible."""
    uncovered = torch.ones_like(levels[:, 0])
    shares = []
    for level in levels.flip(1).unbind(1):
        shares.append((level * uncovered).sum((1, 2)) / level.sum((1, 2)).clamp_min(1e-6))
        uncovered = uncovered * (1 - level)
    return torch.stack(shares[::-1], 1)
