"""Selective search (Uijlings et al., 2013): region proposals from colors alone, without learning.

A picture is segmented at several scales. At each scale the two most similar neighbors are merged until one region is
left. The bounding box of every region that ever existed is a proposal. The similarity of two regions is the sum of

    color   intersection of their color histograms
    size    1 - area of both regions / area of the picture, so small regions merge first
    fill    1 - area of their common bounding box that neither region covers / area of the picture
"""

import heapq

import numpy as np
from jaxtyping import Float32, Int64
from numpy import ndarray

from qkv.models.regions.segmentation import LabelMap, Picture, segment

SCALES = (100.0, 300.0)
BINS = 25


def selective_search(
    picture: Picture, *, scales: tuple[float, ...] = SCALES, min_size: int = 20, min_side: int = 4
) -> Float32[ndarray, "proposals 4"]:
    """Return proposals (x1, y1, x2, y2) without duplicates, the last merges first: those are the largest regions."""
    if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8:
        raise ValueError(f"picture must be uint8 (height, width, 3), got {picture.dtype} {picture.shape}")
    found: list[tuple[float, tuple[int, ...]]] = []
    for labels in segment(picture, *scales, min_size=min_size):
        boxes = merge_regions(picture, labels)
        found += [(i / len(boxes), tuple(box)) for i, box in enumerate(boxes[::-1].tolist())]
    unique = dict.fromkeys(box for _, box in sorted(found))
    kept = [box for box in unique if min(box[2] - box[0], box[3] - box[1]) >= min_side]
    return np.array(kept, dtype=np.float32).reshape(-1, 4)


def merge_regions(picture: Picture, labels: LabelMap) -> Int64[ndarray, "regions 4"]:
    """Return the bounding boxes of the regions in `labels`, then those of the merged regions, in order of merging."""
    grouping = _Grouping(picture, labels)
    while grouping.queue:
        _, i, j = heapq.heappop(grouping.queue)
        if i in grouping.neighbors and j in grouping.neighbors:
            grouping.merge(i, j)
    return grouping.boxes[: grouping.count]


class _Grouping:
    """Regions that are merged in pairs. Merging n regions into one gives at most n - 1 new regions, 2 n - 1 in all."""

    def __init__(self, picture: Picture, labels: LabelMap):
        count = int(labels.max()) + 1
        self.count, self.pixels = count, labels.size
        self.size, self.boxes = np.zeros(2 * count - 1), np.zeros((2 * count - 1, 4), dtype=np.int64)
        self.histogram = np.zeros((2 * count - 1, 3 * BINS), dtype=np.float32)
        self.size[:count] = np.bincount(labels.ravel(), minlength=count)
        self.boxes[:count] = _bounding_boxes(labels, count)
        self.histogram[:count] = _histograms(picture, labels, count)
        pairs = _adjacent(labels)
        self.neighbors: dict[int, set[int]] = {i: set() for i in range(count)}
        for i, j in pairs.tolist():
            self.neighbors[i].add(j)
            self.neighbors[j].add(i)
        scores = self.similarity(pairs[:, 0], pairs[:, 1])
        self.queue = [(-score, i, j) for score, (i, j) in zip(scores.tolist(), pairs.tolist(), strict=True)]
        heapq.heapify(self.queue)

    def similarity(self, i: ndarray | int, j: ndarray) -> ndarray:
        """Return the similarity of each pair of regions: from 0 to 3, the sum of color, size and fill."""
        color = np.minimum(self.histogram[i], self.histogram[j]).sum(-1)
        a, b = self.boxes[i], self.boxes[j]
        extent = np.maximum(a[..., 2:], b[..., 2:]) - np.minimum(a[..., :2], b[..., :2])
        both = self.size[i] + self.size[j]
        return color + 1 - both / self.pixels + 1 - (extent.prod(-1) - both) / self.pixels

    def merge(self, i: int, j: int) -> None:
        """Replace two neighboring regions by their union."""
        new, a, b = self.count, self.size[i], self.size[j]
        self.count += 1
        self.size[new] = a + b
        self.histogram[new] = (a * self.histogram[i] + b * self.histogram[j]) / (a + b)
        self.boxes[new, :2] = np.minimum(self.boxes[i, :2], self.boxes[j, :2])
        self.boxes[new, 2:] = np.maximum(self.boxes[i, 2:], self.boxes[j, 2:])
        around = (self.neighbors.pop(i) | self.neighbors.pop(j)) - {i, j}
        self.neighbors[new] = around
        if not around:
            return
        others = np.array(sorted(around))
        for k, score in zip(others.tolist(), self.similarity(new, others).tolist(), strict=True):
            self.neighbors[k] -= {i, j}
            self.neighbors[k].add(new)
            heapq.heappush(self.queue, (-score, k, new))


def _bounding_boxes(labels: LabelMap, count: int) -> Int64[ndarray, "count 4"]:
    height, width = labels.shape
    y = np.arange(labels.size) // width
    flat = labels.ravel()
    boxes = np.empty((count, 4), dtype=np.int64)
    # of several writes to one place the last one stays: go through the pixels by column or row, both ways
    by_column = labels.T.ravel()
    across = np.arange(labels.size) // height
    boxes[by_column[::-1], 0], boxes[flat[::-1], 1] = across[::-1], y[::-1]
    boxes[by_column, 2], boxes[flat, 3] = across + 1, y + 1
    return boxes


def _histograms(picture: Picture, labels: LabelMap, count: int) -> Float32[ndarray, "count bins"]:
    """Return the color histogram of each region, BINS per channel; each row sums to 1."""
    bins = (picture.reshape(-1, 3).astype(np.int64) * BINS) >> 8
    flat = labels.ravel() * BINS
    counts = [np.bincount(flat + bins[:, c], minlength=count * BINS).reshape(count, BINS) for c in range(3)]
    joined = np.concatenate(counts, 1).astype(np.float32)
    return joined / joined.sum(1, keepdims=True)


def _adjacent(labels: LabelMap) -> Int64[ndarray, "pairs 2"]:
    """Return the pairs of regions that touch, the lower number first."""
    right = np.stack([labels[:, :-1].ravel(), labels[:, 1:].ravel()], 1)
    below = np.stack([labels[:-1].ravel(), labels[1:].ravel()], 1)
    pairs = np.sort(np.concatenate([right, below]), 1)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    codes = np.unique(pairs[:, 0] * (int(labels.max()) + 1) + pairs[:, 1])
    return np.stack(np.divmod(codes, int(labels.max()) + 1), 1)
