"""Metrics of a ranked list: precision, recall and average precision.

    precision_k = hits among the first k / k,     recall_k = hits among the first k / number of objects

Average precision is the mean, over recall levels, of the best precision at that level or above: at every step of recall
(Pascal VOC since 2010), at 11 levels (earlier VOC) or at 101 (COCO).
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

RECALL_LEVELS = {11: tuple(n / 10 for n in range(11)), 101: tuple(n * 0.01 for n in range(101))}
"""Recall levels; COCO's are rounded products, so a recall of 7/20 just misses its 0.35000000000000003."""


@dataclass(frozen=True)
class PrecisionRecall:
    """Precision and recall after every rank."""

    precision: list[float]
    recall: list[float]


def ranked_hits(scores: Sequence[float], found: Sequence[Hashable | None]) -> list[bool]:
    """Return whether each detection is a hit, the highest score first; `found` is the detected object or None.

    Ties keep their order. Only the first detection of an object is a hit.
    """
    if len(scores) != len(found):
        raise ValueError(f"scores and found must have the same length, got {len(scores)} and {len(found)}")
    if any(math.isnan(score) for score in scores):
        raise ValueError("scores must not contain NaN")
    seen: set[Hashable] = set()
    hits = []
    for index in sorted(range(len(scores)), key=lambda index: -scores[index]):
        name = found[index]
        hits.append(name is not None and name not in seen)
        seen.add(name)
    return hits


def precision_recall(hits: Sequence[bool], objects: int) -> PrecisionRecall:
    """Return precision and recall after each rank; `objects` is the number of objects to be found."""
    found = _count_hits(hits, objects)
    return PrecisionRecall(
        [right / rank for rank, right in enumerate(found, 1)],
        [right / objects for right in found],
    )


def average_precision(hits: Sequence[bool], objects: int, points: int | None = None) -> float:
    """Return the average precision over every step of recall (None), or over 11 or 101 recall levels."""
    if points is not None and points not in RECALL_LEVELS:
        raise ValueError(f"points must be None (every step of recall), 11 or 101, got {points}")
    curve = precision_recall(hits, objects)
    best = list(curve.precision)
    for rank in range(len(best) - 2, -1, -1):
        best[rank] = max(best[rank], best[rank + 1])
    if points is None:
        return sum(precision for precision, hit in zip(best, hits, strict=True) if hit) / objects
    total, rank = 0.0, 0
    for level in RECALL_LEVELS[points]:
        while rank < len(best) and curve.recall[rank] < level:
            rank += 1
        total += best[rank] if rank < len(best) else 0.0
    return total / points


def _count_hits(hits: Sequence[bool], objects: int) -> list[int]:
    if objects < 1:
        raise ValueError(f"objects must be at least 1, got {objects}: recall is undefined without objects")
    right, found = 0, []
    for hit in hits:
        right += bool(hit)
        found.append(right)
    if right > objects:
        raise ValueError(
            f"hits must be at most objects={objects}, got {right}; only the first detection of an object is a hit"
        )
    return found
