"""Match boxes to objects: by IoU for anchors and proposals, one to one (Hungarian) for the queries of DETR."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkv.models.regions.boxes import iou

IGNORED = -1
NEGATIVE = 0
POSITIVE = 1

Candidates = Float[Tensor, "batch candidates 4"]
Objects = Float[Tensor, "batch objects 4"]
Labels = Int[Tensor, "batch candidates"]


def match_by_iou(
    candidates: Candidates,
    objects: Objects,
    is_object: Bool[Tensor, "batch objects"],
    *,
    high: float,
    low: float,
    is_difficult: Bool[Tensor, "batch objects"] | None = None,
    keep_best: bool = False,
) -> tuple[Labels, Labels]:
    """Return a label for each candidate (POSITIVE, NEGATIVE or IGNORED) and the index of its nearest object.

    IoU >= high is positive, < low negative, between the two ignored. `keep_best`: the candidates with the highest IoU
    of an object are positive too, so that no object is without one. A candidate that matches a difficult object is
    ignored.
    """
    if not objects.shape[1]:
        nothing = torch.zeros(candidates.shape[:2], dtype=torch.long, device=candidates.device)
        return nothing + NEGATIVE, nothing
    overlaps = iou(candidates, objects).masked_fill(~is_object[:, None], -1.0)
    best, nearest = overlaps.max(2)
    labels = torch.full_like(nearest, IGNORED)
    labels[best < low] = NEGATIVE
    labels[best >= high] = POSITIVE
    if keep_best:
        most = overlaps.amax(1, keepdim=True)
        ties = (overlaps == most) & (most > 0)  # [batch, candidates, objects]
        nearest = torch.where(ties.any(2), ties.to(torch.uint8).argmax(2), nearest)
        labels[ties.any(2)] = POSITIVE
    if is_difficult is not None:
        hit = (labels == POSITIVE) & is_difficult.gather(1, nearest)
        labels[hit] = IGNORED
    return labels, nearest


def sample_labels(
    labels: Labels, count: int, positive_share: float, noise: Float[Tensor, "batch candidates"]
) -> Bool[Tensor, "batch candidates"]:
    """Return `count` sampled candidates per picture: at most this share positive, the rest negative.

    The candidates with the smallest `noise` are taken, so the sample is a function of the noise alone.
    """
    positive = _smallest(noise, labels == POSITIVE, int(count * positive_share))
    room = count - positive.sum(1, keepdim=True)
    return positive | _smallest(noise, labels == NEGATIVE, room)


def _smallest(noise: Tensor, among: Tensor, count: int | Tensor) -> Tensor:
    ranked = noise.masked_fill(~among, torch.inf).argsort(dim=1, stable=True)
    rank = torch.empty_like(ranked).scatter_(
        1, ranked, torch.arange(ranked.shape[1], device=noise.device).expand_as(ranked)
    )
    return among & (rank < count)


def match_one_to_one(cost: Float[Tensor, "queries objects"]) -> Int[Tensor, " objects"]:
    """Return for each object the query of the assignment with the least total cost (Hungarian algorithm).

    Shortest augmenting paths, O(objects^2 queries), on the CPU. Needs at least as many queries as objects.
    """
    queries, objects = cost.shape
    if queries < objects:
        raise ValueError(f"queries={queries} must be at least objects={objects}")
    if not bool(cost.isfinite().all()):
        raise ValueError("cost must be finite")
    costs = cost.detach().T.double().cpu()  # [objects, queries]
    u, v = torch.zeros(objects, dtype=torch.double), torch.zeros(queries, dtype=torch.double)
    owner = torch.full((queries,), -1)
    for start in range(objects):
        _augment(costs, u, v, owner, start)
    taken = (owner >= 0).nonzero().squeeze(1)
    found = torch.empty(objects, dtype=torch.long)
    found[owner[taken]] = taken
    return found.to(cost.device)


def _augment(costs: Tensor, u: Tensor, v: Tensor, owner: Tensor, start: int) -> None:
    """Give object `start` a query, moving other objects along the cheapest path; u and v are the dual prices."""
    queries = costs.shape[1]
    cheapest = torch.full((queries,), torch.inf, dtype=torch.double)
    before = torch.full((queries,), -1)
    done = torch.zeros(queries, dtype=torch.bool)
    current, at = start, -1
    while True:
        reduced = costs[current] - u[current] - v
        better = ~done & (reduced < cheapest)
        cheapest[better], before[better] = reduced[better], at
        nearest = int(cheapest.masked_fill(done, torch.inf).argmin())
        step = cheapest[nearest].item()
        u[start] += step
        u[owner[done]] += step
        v[done] -= step
        cheapest[~done] -= step
        done[nearest] = True
        at = nearest
        if owner[at] < 0:
            break
        current = int(owner[at])
    while at >= 0:
        previous = int(before[at])
        owner[at] = start if previous < 0 else owner[previous]
        at = previous
