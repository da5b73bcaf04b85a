"""Graph segmentation (Felzenszwalb and Huttenlocher, 2004): merge pixels into regions of similar color.

Edges between neighboring pixels are visited by rising color difference w. An edge joins its two regions if

    w <= min(largest(A) + scale / size(A), largest(B) + scale / size(B))

where largest is the largest w inside of a region. Ties go to the edge with the lower index.

definition   `segment_by_definition`: one edge after the other
fast form    `segment`: an edge that is the smallest of both of its regions can be decided now, since no earlier edge
             changes these regions. All such edges are decided together in numpy. After a few rounds the rest is done
             one by one. The result is the same, exactly.
"""

import numpy as np
from jaxtyping import Float32, Int64, UInt8
from numpy import ndarray

Picture = UInt8[ndarray, "height width 3"]
LabelMap = Int64[ndarray, "height width"]

_Edges = tuple[ndarray, ndarray, ndarray]
"""First pixel, second pixel and color difference of each edge, by rising difference."""

ROUNDS = 8
"""Rounds in numpy; later ones cost more than they save."""


def segment(picture: Picture, *scales: float, sigma: float = 0.8, min_size: int = 20) -> list[LabelMap]:
    """Return for each scale a map of region numbers, from 0; regions below `min_size` are joined to a neighbor.

    A larger scale gives larger regions. `sigma` is the blur before the color differences.
    """
    edges = _edges(blur(picture, sigma))
    return [_segment(edges, picture.shape[:2], scale, min_size, ROUNDS) for scale in scales]


def segment_by_definition(picture: Picture, scale: float, *, sigma: float = 0.8, min_size: int = 20) -> LabelMap:
    """Return the regions of `segment` at one scale, edge by edge: the law that it is tested against."""
    return _segment(_edges(blur(picture, sigma)), picture.shape[:2], scale, min_size, rounds=0)


def blur(picture: Picture, sigma: float) -> Float32[ndarray, "height width 3"]:
    """Return the picture after a Gaussian blur; edges are repeated."""
    x = picture.astype(np.float32)
    if sigma <= 0:
        return x
    radius = int(np.ceil(4 * sigma))
    kernel = np.exp(-0.5 * (np.arange(-radius, radius + 1, dtype=np.float32) / np.float32(sigma)) ** 2)
    kernel /= kernel.sum()
    for axis in (0, 1):
        pad = [(0, 0)] * 3
        pad[axis] = (radius, radius)
        wide, length = np.pad(x, pad, mode="edge"), x.shape[axis]
        x = sum(
            (factor * wide.take(range(i, i + length), axis) for i, factor in enumerate(kernel)), np.zeros_like(x)
        ).astype(np.float32)
    return x


def _segment(edges: _Edges, shape: tuple[int, ...], scale: float, min_size: int, rounds: int) -> LabelMap:
    root, size, largest, undecided = _merge_in_rounds(edges, shape[0] * shape[1], scale, rounds)
    names, compact = np.unique(root, return_inverse=True)
    regions = _Regions(size[names].tolist(), largest[names].tolist())
    u, v, w = (x[undecided] for x in edges)
    for a, b, difference in zip(compact[u].tolist(), compact[v].tolist(), w.tolist(), strict=True):
        regions.join_if_similar(a, b, difference, scale)
    compact = regions.roots()[compact]
    u, v = compact[edges[0]], compact[edges[1]]
    small = np.array(regions.size) < min_size
    near = (u != v) & (small[u] | small[v])
    for a, b in zip(u[near].tolist(), v[near].tolist(), strict=True):
        regions.join_if_small(a, b, min_size)
    return np.unique(regions.roots()[compact], return_inverse=True)[1].reshape(shape)


class _Regions:
    """Regions as a union-find forest, with the size and the largest inner difference of each root."""

    def __init__(self, size: list[int], largest: list[float]):
        self.parent = list(range(len(size)))
        self.size, self.largest = size, largest

    def find(self, i: int) -> int:
        """Return the root of a region; the path to it is halved."""
        parent = self.parent
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    def roots(self) -> Int64[ndarray, " regions"]:
        """Return the root of every region."""
        return np.array([self.find(i) for i in range(len(self.parent))])

    def join_if_similar(self, i: int, j: int, difference: float, scale: float) -> None:
        """Join two regions unless the difference exceeds the limit of one of them."""
        a, b = self.find(i), self.find(j)
        if a == b:
            return
        size, largest = self.size, self.largest
        if difference <= largest[a] + scale / size[a] and difference <= largest[b] + scale / size[b]:
            self._join(a, b)
            largest[a] = difference

    def join_if_small(self, i: int, j: int, min_size: int) -> None:
        """Join two regions if one of them is smaller than `min_size`."""
        a, b = self.find(i), self.find(j)
        if a != b and (self.size[a] < min_size or self.size[b] < min_size):
            self._join(a, b)

    def _join(self, a: int, b: int) -> None:
        self.parent[b] = a
        self.size[a] += self.size[b]


def _edges(x: ndarray) -> _Edges:
    """Return both ends and the difference of every edge to the right, below and diagonal, by rising difference."""
    height, width = x.shape[:2]
    index = np.arange(height * width).reshape(height, width)
    ends, weights = [], []
    for dy, dx in ((0, 1), (1, 0), (1, 1), (1, -1)):
        left, right = max(0, -dx), width - max(0, dx)
        here, there = (slice(0, height - dy), slice(left, right)), (slice(dy, height), slice(left + dx, right + dx))
        ends.append(np.stack([index[here].ravel(), index[there].ravel()]))
        weights.append(np.sqrt(np.square(x[here] - x[there]).sum(-1)).ravel())
    (u, v), w = np.concatenate(ends, 1), np.concatenate(weights)
    order = np.argsort(w, kind="stable")
    return u[order], v[order], w[order].astype(np.float64)


def _merge_in_rounds(
    edges: _Edges, pixels: int, scale: float, rounds: int
) -> tuple[ndarray, ndarray, ndarray, ndarray]:
    """Decide edges that are the smallest of both their regions, many at once.

    Return the root of each pixel, size and largest difference of each root, and the indices of undecided edges.
    """
    root, size, largest = np.arange(pixels), np.ones(pixels, dtype=np.int64), np.zeros(pixels)
    undecided = np.arange(len(edges[2]))
    for _ in range(rounds):
        a, b = root[edges[0][undecided]], root[edges[1][undecided]]
        across = a != b
        a, b, undecided = a[across], b[across], undecided[across]
        smallest = np.full(pixels, len(edges[2]))
        # of several writes to one place the last one stays, here the smallest edge
        both = np.stack([a, b], 1).ravel()[::-1]
        smallest[both] = undecided.repeat(2)[::-1]
        mutual = (smallest[a] == undecided) & (smallest[b] == undecided)
        a, b, w = a[mutual], b[mutual], edges[2][undecided[mutual]]
        joins = w <= np.minimum(largest[a] + scale / size[a], largest[b] + scale / size[b])
        a, b, w = a[joins], b[joins], w[joins]  # no root is in two pairs
        root[b] = a
        root = root[root]
        size[a] += size[b]
        largest[a] = w
        undecided = undecided[~mutual]
    return root, size, largest, undecided
