"""RoI pooling and RoI alignment: features of fixed size from regions of interest (RoIs) of any size.

`roi_pool` (Fast R-CNN) rounds a region to cells and takes the maximum of each bin. `roi_align` (Mask R-CNN) does not
round: it averages bilinear samples. Regions are dense, (batch, rois, 4): a batch with fewer regions is padded.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from qkv.models.regions.boxes import Boxes

FeatureMap = Float[Tensor, "batch channels height width"]
Regions = Float[Tensor, "batch rois 4"]
Pooled = Float[Tensor, "batch rois channels size size"]
SamplePoints = Float[Tensor, "batch rois samples"]

MIN_BAG_CHANNELS = 16
"""With fewer channels, reading the cells of a bin one by one does not pay."""


def roi_pool(features: FeatureMap, rois: Regions, size: int, scale: float) -> Pooled:
    """Return the maximum of each bin; `scale` maps pixels to cells of the map (1 / stride). An empty bin gives 0.

    The corners are rounded to cells and belong to the region. Any bin is covered by four overlapping windows whose
    sides are powers of two, and the maxima of all such windows, up to the largest bin, are computed once per map.
    """
    batch, channels, height, width = features.shape
    rows = _bin_edges(rois[..., 1::2], size, scale, height)
    columns = _bin_edges(rois[..., 0::2], size, scale, width)
    (top, bottom, row_level), (left, right, column_level) = _windows(*rows), _windows(*columns)
    table, starts = _window_maxima(features, *_highest_levels(row_level, column_level, (height, width)))
    # [batch, rois, size, size]: place of the window whose first cell is (0, 0), and cells per row of its level
    first = starts(row_level[..., :, None], column_level[..., None, :])
    first = first + table.shape[1] * torch.arange(batch, device=rois.device)[:, None, None, None]
    across = (width + 1 - 2**column_level)[..., None, :]
    found, flat = None, table.flatten(0, 1)
    for y in (top, bottom):
        for x in (left, right):
            place = first + y[..., :, None] * across + x[..., None, :]
            values = flat.index_select(0, place.flatten())  # its gradient is faster than that of flat[place]
            found = values if found is None else torch.maximum(found, values)
    assert found is not None
    empty = (rows[0] >= rows[1])[..., :, None] | (columns[0] >= columns[1])[..., None, :]
    return torch.where(empty[..., None], 0.0, found.view(*empty.shape, channels)).movedim(-1, 2)


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
    y = _sample_points(rois[..., 1::2], size, scale, samples)  # [batch, rois, size * samples]
    x = _sample_points(rois[..., 0::2], size, scale, samples)
    if features.is_cuda or features.shape[1] < MIN_BAG_CHANNELS:
        return _align_by_grid(features, y, x, samples)
    return _align_by_bags(features, y, x, samples)


def _align_by_grid(features: FeatureMap, y: SamplePoints, x: SamplePoints, samples: int) -> Pooled:
    """Read every sample, then average: for a GPU, and for few channels."""
    height, width = features.shape[2:]
    # grid_sample's -1..1 runs over pixel edges: cell i has its center at (i + 1/2) / length
    y, x = (2 * y + 1) / height - 1, (2 * x + 1) / width - 1
    grid = torch.stack(torch.broadcast_tensors(x[..., None, :], y[..., :, None]), -1)
    found = functional.grid_sample(
        features, grid.flatten(1, 2).to(features.dtype), padding_mode="border", align_corners=False
    )  # [batch, channels, rois * size * samples, size * samples]
    return functional.avg_pool2d(found, samples).unflatten(2, (y.shape[1], -1)).movedim(2, 1)


def _align_by_bags(features: FeatureMap, y: SamplePoints, x: SamplePoints, samples: int) -> Pooled:
    """Sum the weighted cells of each bin: the samples are never stored, three times as fast on a CPU."""
    batch, _, height, width = features.shape
    rows, row_weights = _cells_of_bins(y, height, samples)  # [batch, rois, size, 2 * samples]
    columns, column_weights = _cells_of_bins(x, width, samples)
    rows = rows + height * torch.arange(batch, device=rows.device)[:, None, None, None]
    # the last two axes are the rows and columns of a bin
    cells = rows[:, :, :, None, :, None] * width + columns[:, :, None, :, None, :]
    weights = row_weights[:, :, :, None, :, None] * column_weights[:, :, None, :, None, :]
    found = functional.embedding_bag(
        cells.flatten(4).flatten(0, 3),
        features.movedim(1, -1).flatten(0, 2),
        per_sample_weights=weights.flatten(4).flatten(0, 3).to(features.dtype),
        mode="sum",
    )
    return found.view(*cells.shape[:4], -1).movedim(-1, 2)


def _cells_of_bins(points: SamplePoints, length: int, samples: int) -> tuple[Tensor, Tensor]:
    """Return the cells that each bin reads along one axis, and their weights in its mean."""
    points = points.clamp(0, length - 1)
    low = points.detach().nan_to_num().floor().long()  # a box of NaN has a cell to read, and features of NaN
    share = points - low
    cells = torch.stack([low, (low + 1).clamp_max(length - 1)], -1)
    weights = torch.stack([1 - share, share], -1) / samples
    return cells.unflatten(2, (-1, samples)).flatten(3), weights.unflatten(2, (-1, samples)).flatten(3)


def roi_align_by_definition(
    features: FeatureMap, rois: Regions, size: int, scale: float, *, samples: int = 2
) -> Pooled:
    """Return the mean of bilinear samples, each from its four neighbors; tests compare `roi_align` with it."""
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


def _highest_levels(rows: Tensor, columns: Tensor, shape: tuple[int, int]) -> tuple[int, int]:
    """Return the highest levels in use; where values cannot be read, the highest that there can be."""
    if rows.is_meta or not rows.numel() or (rows.is_cuda and torch.cuda.is_current_stream_capturing()):
        return shape[0].bit_length() - 1, shape[1].bit_length() - 1
    row, column = torch.stack([rows.max(), columns.max()]).tolist()  # one wait for a GPU
    return row, column


def _window_maxima(features: Tensor, rows: int, columns: int) -> tuple[Tensor, Callable[[Tensor, Tensor], Tensor]]:
    """Return the maxima of all windows of 2^i x 2^j cells, i <= rows, j <= columns, and where a level (i, j) starts.

    The table is (batch, windows, channels): by i, then j, then the first row and column of a window.
    """
    height, width = features.shape[2:]
    levels, tall = [], features.movedim(1, -1)
    for i in range(rows + 1):
        wide = tall
        for j in range(columns + 1):
            levels.append(wide.flatten(1, 2))
            wide = torch.maximum(wide[:, :, : -(2**j)], wide[:, :, 2**j :]) if j < columns else wide
        tall = torch.maximum(tall[:, : -(2**i)], tall[:, 2**i :]) if i < rows else tall

    def starts(i: Tensor, j: Tensor) -> Tensor:
        # level j has width + 1 - 2^j windows in a row, the levels below it together j (width + 1) - (2^j - 1)
        every = (columns + 1) * (width + 1) - (2 ** (columns + 1) - 1)
        above, before = i * (height + 1) - (2**i - 1), j * (width + 1) - (2**j - 1)
        return above * every + (height + 1 - 2**i) * before

    return torch.cat(levels, 1), starts


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
