"""RoI pooling and RoI alignment: features of fixed size from regions of interest (RoIs) of any size.

`roi_pool` (Fast R-CNN) rounds a region to cells and takes the maximum of each bin. `roi_align` (Mask R-CNN) does not
round: it averages bilinear samples. Regions are dense, (batch, rois, 4): a batch with fewer regions is padded.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from qkv.models.regions.boxes import Boxes

FeatureMap = Float[Tensor, "batch channels height width"]
Regions = Float[Tensor, "batch rois 4"]
Pooled = Float[Tensor, "batch rois channels size size"]


def roi_pool(features: FeatureMap, rois: Regions, size: int, scale: float) -> Pooled:
    """Return the maximum of each bin; `scale` maps pixels to cells of the map (1 / stride). An empty bin gives 0.

    The corners are rounded to cells and belong to the region. Any bin is covered by four overlapping windows whose
    sides are powers of two, and the maxima of all such windows are computed once per map.
    """
    height, width = features.shape[2:]
    rows = _bin_edges(rois[..., 1::2], size, scale, height)
    columns = _bin_edges(rois[..., 0::2], size, scale, width)
    maxima = _power_maxima(features)  # {(log height, log width): [batch, height * width, channels]}
    table = torch.stack([maxima[key] for key in sorted(maxima)], 1)  # [batch, levels, cells, channels]
    across = max(key[1] for key in maxima) + 1
    (top, bottom, row_level), (left, right, column_level) = _windows(*rows), _windows(*columns)
    level = row_level[..., :, None] * across + column_level[..., None, :]  # [batch, rois, size, size]
    corners = [
        (level * height + y[..., :, None]) * width + x[..., None, :] for y in (top, bottom) for x in (left, right)
    ]
    flat = table.flatten(1, 2)  # [batch, levels * cells, channels]
    batch = torch.arange(len(flat), device=flat.device)[:, None, None, None]
    found = flat[batch, corners[0]]  # [batch, rois, size, size, channels]
    for corner in corners[1:]:
        found = torch.maximum(found, flat[batch, corner])
    empty = (rows[0] >= rows[1])[..., :, None] | (columns[0] >= columns[1])[..., None, :]
    return torch.where(empty[..., None], 0.0, found).movedim(-1, 2)


def roi_pool_by_definition(features: FeatureMap, rois: Regions, size: int, scale: float) -> Pooled:
    """Return the maximum of each bin by a loop over bins: the law that `roi_pool` is tested against."""
    batch, channels, height, width = features.shape
    top, bottom = _bin_edges(rois[..., 1::2], size, scale, height)
    left, right = _bin_edges(rois[..., 0::2], size, scale, width)
    pooled = features.new_zeros(batch, rois.shape[1], channels, size, size)
    for b in range(batch):
        for r in range(rois.shape[1]):
            for i in range(size):
                for j in range(size):
                    cells = features[b, :, top[b, r, i] : bottom[b, r, i], left[b, r, j] : right[b, r, j]]
                    if cells.numel():
                        pooled[b, r, :, i, j] = cells.amax((1, 2))
    return pooled


def roi_align(features: FeatureMap, rois: Regions, size: int, scale: float, *, samples: int = 2) -> Pooled:
    """Return the mean of samples x samples bilinear samples of each bin (half-pixel centers, as "aligned" elsewhere).

    Samples outside of the map take the value of its edge.
    """
    batch, count = rois.shape[:2]
    if not count:
        return features.new_zeros(batch, 0, features.shape[1], size, size)
    height, width = features.shape[2:]
    y = _sample_points(rois[..., 1::2], size, scale, samples)  # [batch, rois, size * samples]
    x = _sample_points(rois[..., 0::2], size, scale, samples)
    # grid_sample's -1..1 runs over pixel edges: cell i has its center at (i + 1/2) / length
    y, x = (2 * y + 1) / height - 1, (2 * x + 1) / width - 1
    grid = torch.stack(torch.broadcast_tensors(x[..., None, :], y[..., :, None]), -1)
    found = functional.grid_sample(
        features, grid.flatten(1, 2).to(features.dtype), padding_mode="border", align_corners=False
    )  # [batch, channels, rois * size * samples, size * samples]
    return functional.avg_pool2d(found, samples).unflatten(2, (count, size)).movedim(2, 1)


def roi_align_by_definition(
    features: FeatureMap, rois: Regions, size: int, scale: float, *, samples: int = 2
) -> Pooled:
    """Return bilinear samples by their four neighbors, averaged: the law that `roi_align` is tested against."""
    batch, _, height, width = features.shape
    y = _sample_points(rois[..., 1::2], size, scale, samples).clamp(0, height - 1)
    x = _sample_points(rois[..., 0::2], size, scale, samples).clamp(0, width - 1)
    index = torch.arange(batch, device=features.device)[:, None, None, None]
    cells = features.movedim(1, -1)
    total = torch.zeros((), dtype=features.dtype, device=features.device)
    for near_y in (y.floor(), y.floor() + 1):
        for near_x in (x.floor(), x.floor() + 1):
            weight = (1 - (y - near_y).abs())[..., :, None] * (1 - (x - near_x).abs())[..., None, :]
            row, column = near_y.long().clamp_max(height - 1), near_x.long().clamp_max(width - 1)
            total = total + weight[..., None] * cells[index, row[..., :, None], column[..., None, :]]
    total = total.unflatten(3, (size, samples)).unflatten(2, (size, samples))
    return total.mean((3, 5)).movedim(-1, 2)


def _bin_edges(corners: Boxes, size: int, scale: float, length: int) -> tuple[Tensor, Tensor]:
    """Return first and last + 1 cell of each bin along one axis, (batch, rois, size) each.

    Integer arithmetic gives the floor and the ceiling of a bin's edges exactly.
    """
    # half away from zero, as in Fast R-CNN; torch.round would round half to even
    start, end = (corners * scale + 0.5).floor().long().unbind(-1)
    extent = (end - start + 1).clamp_min(1)[..., None]
    bins = torch.arange(size, device=corners.device)
    low = start[..., None] + bins * extent // size
    high = start[..., None] - (-(bins + 1) * extent // size)
    return low.clamp(0, length), high.clamp(0, length)


def _power_maxima(features: Tensor) -> dict[tuple[int, int], Tensor]:
    """Return the maxima of windows of 2^i x 2^j cells, by (i, j); each (batch, cells, channels), by first cell.

    A window that would leave the map stops at its edge.
    """
    height, width = features.shape[2:]
    levels = {}
    tall = features
    for i in range(height.bit_length()):
        wide = tall
        for j in range(width.bit_length()):
            levels[i, j] = wide.flatten(2).transpose(1, 2)
            wide = torch.maximum(wide, _shift(wide, -1, 2**j))
        tall = torch.maximum(tall, _shift(tall, -2, 2**i))
    return levels


def _shift(x: Tensor, axis: int, by: int) -> Tensor:
    """Return x moved by `by` cells towards the start of an axis; the last cell is repeated."""
    length = x.shape[axis]
    index = (torch.arange(length, device=x.device) + by).clamp_max(length - 1)
    return x.index_select(axis, index)


def _windows(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the first cells of two windows of 2^level cells that cover low..high, and the level."""
    extent = (high - low).clamp_min(1)
    level = torch.frexp(extent.double()).exponent.long() - 1  # floor of log2, exact for integers
    last = (high - 2**level).clamp_min(0)
    length_safe = torch.minimum(low, last)  # an empty bin at the far edge still reads a cell
    return length_safe, last, level


def _sample_points(corners: Tensor, size: int, scale: float, samples: int) -> Tensor:
    """Return the cell coordinates of the samples along one axis, (batch, rois, size * samples)."""
    start, end = (corners * scale - 0.5).unbind(-1)
    steps = (torch.arange(size * samples, device=corners.device, dtype=corners.dtype) + 0.5) / (size * samples)
    return start[..., None] + steps * (end - start)[..., None]
