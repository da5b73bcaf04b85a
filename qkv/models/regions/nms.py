"""Non-maximum suppression (NMS): of boxes that overlap, keep the one with the highest score.

    definition   go through the boxes by falling score; keep a box unless a kept one overlaps it by IoU > threshold
    fast form    kept = valid and not (any kept box of higher score overlaps), repeated until nothing changes

The fast form has one fixed point, the greedy result: the box of rank r is settled after r + 1 rounds at the latest. In
practice 5 to 9 rounds do. It needs no loop over boxes and batches over pictures.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkv.models.regions.boxes import Boxes, iou

Scores = Float[Tensor, "*rows boxes"]
Groups = Int[Tensor, "*rows boxes"]
Kept = Bool[Tensor, "*rows boxes"]


class _FixedRounds(NamedTuple):
    rounds: int
    settled: list[Tensor]


_fixed_rounds: ContextVar[_FixedRounds | None] = ContextVar("fixed_rounds", default=None)


@contextmanager
def fixed_rounds(rounds: int) -> Iterator[list[Bool[Tensor, ""]]]:
    """Run this many rounds in every `nms` of the block, so that it reads no values and a CUDA graph can record it.

    Yields a list to which each call appends whether its rounds were enough; if one is False, the boxes are wrong.
    """
    settled: list[Tensor] = []
    token = _fixed_rounds.set(_FixedRounds(rounds, settled))
    try:
        yield settled
    finally:
        _fixed_rounds.reset(token)


def nms(boxes: Boxes, scores: Scores, threshold: float, *, groups: Groups | None = None) -> Kept:
    """Return which boxes are kept; boxes of different `groups` (classes) do not suppress each other.

    A score of -inf marks a padded box: never kept, suppresses nothing. Among equal scores the first box ranks higher.
    """
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold must be in 0..1, got {threshold}")
    order = scores.argsort(dim=-1, descending=True, stable=True)
    ranked = boxes.gather(-2, order[..., None].expand(*order.shape, 4))
    overlaps = (iou(ranked, ranked) > threshold).tril(-1)  # [..., box, box of higher score]
    if groups is not None:
        group = groups.gather(-1, order)
        overlaps &= group[..., :, None] == group[..., None, :]
    valid = scores.gather(-1, order) > -torch.inf
    kept = _fixed_point(overlaps, valid)
    return torch.zeros_like(kept).scatter(-1, order, kept)


def _fixed_point(overlaps: Bool[Tensor, "*rows boxes boxes"], valid: Kept) -> Kept:
    """Repeat kept = valid and no kept box of higher score overlaps, until nothing changes.

    A round counts the kept rivals of every box by one matrix product. Reading the result waits for the GPU, so it is
    read every other round.
    """
    rivals, invalid = overlaps.float(), (~valid).float()[..., None]

    def next_round(kept: Tensor) -> Tensor:
        return torch.eq(rivals @ kept + invalid, 0).float()

    before = kept = 1 - invalid
    if fixed := _fixed_rounds.get():
        for _ in range(fixed.rounds):
            before, kept = kept, next_round(kept)
        fixed.settled.append((before == kept).all())
        return kept[..., 0].bool()
    while True:
        before = next_round(kept)
        kept = next_round(before)
        if torch.equal(before, kept):
            return kept[..., 0].bool()


def nms_by_definition(boxes: Boxes, scores: Scores, threshold: float, *, groups: Groups | None = None) -> Kept:
    """Return which boxes are kept, by the greedy loop: the law that `nms` is tested against."""
    if scores.ndim > 1:
        rows = [
            nms_by_definition(boxes[i], scores[i], threshold, groups=None if groups is None else groups[i])
            for i in range(len(scores))
        ]
        return torch.stack(rows)
    kept = torch.zeros_like(scores, dtype=torch.bool)
    for i in scores.argsort(dim=0, descending=True, stable=True).tolist():
        rivals = kept if groups is None else kept & (groups == groups[i])
        overlap = iou(boxes[i : i + 1], boxes[rivals])
        kept[i] = bool(scores[i] > -torch.inf) and not bool((overlap > threshold).any())
    return kept
