"""Anchors: reference boxes at every cell of a feature map, from which a region proposal network predicts offsets.

k-means finds anchor sizes that fit the training boxes; `uncovered_share` tells how many boxes no anchor fits.
"""

import torch
from jaxtyping import Float
from torch import Tensor

Sizes = Float[Tensor, "sizes 2"]


def size_iou(sizes: Sizes, others: Float[Tensor, "others 2"]) -> Float[Tensor, "sizes others"]:
    """Return the IoU of each pair of boxes, given as (width, height) and placed at the same center."""
    inter = torch.minimum(sizes[:, None], others[None]).prod(-1)
    return inter / (sizes.prod(-1)[:, None] + others.prod(-1)[None] - inter)


def fit_anchor_sizes(sizes: Sizes, count: int, *, max_rounds: int = 100) -> Float[Tensor, "count 2"]:
    """Cluster box sizes into `count` anchor sizes (width, height) by k-means; return them by area, smallest first.

    The distance is 1 - IoU. The initial centers are `count` boxes at evenly spaced ranks by area, so the result is
    deterministic. Each center moves to the median width and height of its boxes; a center without boxes stays.
    """
    if not len(sizes):
        raise ValueError("sizes is empty: anchors need at least one training box")
    if bool((sizes <= 0).any()):
        raise ValueError(f"sizes must be above 0, got {sizes.min().item():g}")
    ranked = sizes[sizes.prod(-1).argsort(dim=0, stable=True)]
    centers = ranked[((torch.arange(count) + 0.5) / count * len(ranked)).long()].clone()
    nearest = torch.full((len(sizes),), -1)
    for _ in range(max_rounds):
        found = size_iou(sizes, centers).argmax(1)
        if torch.equal(found, nearest):
            break
        nearest = found
        for i in range(count):
            members = sizes[nearest == i]
            if len(members):
                centers[i] = members.quantile(0.5, dim=0)
    return centers[centers.prod(-1).argsort(dim=0, stable=True)]


def uncovered_share(sizes: Sizes, anchors: Float[Tensor, "anchors 2"], threshold: float = 0.5) -> float:
    """Return the fraction of boxes whose IoU with every anchor is below `threshold`, even at the same center."""
    return (size_iou(sizes, anchors).amax(1) < threshold).double().mean().item()


def anchor_grid(sizes: Sizes, height: int, width: int, stride: int) -> Float[Tensor, "anchors 4"]:
    """Return the anchors of a (height, width) feature map as (x1, y1, x2, y2) in pixels, by row, column, then size."""
    y = (torch.arange(height, device=sizes.device, dtype=sizes.dtype) + 0.5) * stride
    x = (torch.arange(width, device=sizes.device, dtype=sizes.dtype) + 0.5) * stride
    center = torch.stack(torch.meshgrid(y, x, indexing="ij")[::-1], -1)[:, :, None]  # [height, width, 1, 2]
    return torch.cat([center - sizes / 2, center + sizes / 2], -1).flatten(0, 2)
