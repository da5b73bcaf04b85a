"""What a head does, in five numbers, so that one can be found among hundreds."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Summary:
    """Means over the queries of one head."""

    entropy: float
    """In bits, -sum_j a_j log2 a_j: 0 where one key has all, log2(keys) where all have the same."""
    itself: float
    """Weight on the key of the query's own place; of square matrices only, else 0."""
    previous: float
    """Weight on the key before it."""
    first: float
    """Weight on the first key."""
    largest: float
    """The largest weight of all, no mean."""


def summarize(weights: Tensor) -> Summary:
    """The numbers of one matrix (queries, keys); shares of weight are plain means of its entries."""
    if weights.dim() != 2 or not weights.numel():
        raise ValueError(f"weights must be (queries, keys) and not empty, got shape {tuple(weights.shape)}")
    queries, keys = weights.shape
    # negative weights, of kinds that sum, have no entropy; xlogy(0, 0) is 0
    positive = weights.clamp(min=0)
    entropy = -torch.xlogy(positive, positive).sum(-1).mean() / torch.log(torch.tensor(2.0))
    square = queries == keys
    return Summary(
        entropy=float(entropy),
        itself=float(weights.diagonal().mean()) if square else 0.0,
        previous=float(weights.diagonal(-1).sum()) / (queries - 1) if square and queries > 1 else 0.0,
        first=float(weights[:, 0].mean()),
        largest=float(weights.max()),
    )
