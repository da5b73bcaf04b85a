"""Five statistics of an attention head, to find one among hundreds."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class HeadSummary:
    """Means over the queries of one head."""

    entropy: float
    """In bits, -sum_j a_j log2 a_j: 0 if one key has all the weight, log2(keys) if all have the same."""
    itself: float
    """Weight on the key at the query's own position; 0 if the matrix is not square."""
    previous: float
    """Weight on the key before it."""
    first: float
    """Weight on the first key."""
    largest: float
    """Largest weight of all queries; not a mean."""


def summarize(weights: Tensor) -> HeadSummary:
    """Return the statistics of one matrix (queries, keys)."""
    if weights.dim() != 2 or not weights.numel():
        raise ValueError(f"weights must be (queries, keys) and not empty, got shape {tuple(weights.shape)}")
    queries, keys = weights.shape
    # kinds that do not normalize may have negative weights, which have no entropy; xlogy(0, 0) is 0
    positive = weights.clamp(min=0)
    entropy = -torch.xlogy(positive, positive).sum(-1).mean() / torch.log(torch.tensor(2.0))
    square = queries == keys
    return HeadSummary(
        entropy=float(entropy),
        itself=float(weights.diagonal().mean()) if square else 0.0,
        previous=float(weights.diagonal(-1).sum()) / (queries - 1) if square and queries > 1 else 0.0,
        first=float(weights[:, 0].mean()),
        largest=float(weights.max()),
    )
