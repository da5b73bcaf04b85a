"""How good a ranked list is: precision, recall and average precision.

    precision_k = right among the first k / k,     recall_k = right among the first k / objects there are

Average precision is the mean over recall levels of the best precision at that level or beyond it: over every step of
recall (Pascal VOC from 2010), over 11 levels (before) or over 101 (COCO).
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

LEVELS = {11: tuple(n / 10 for n in range(11)), 101: tuple(n * 0.01 for n in range(101))}
"""The recall levels; COCO's own are products, so that a recall of 7/20 just misses its 0.35000000000000003."""


@dataclass(frozen=True)
class PrecisionRecall:
    """One number of each after every rank."""

    precision: list[float]
    recall: list[float]


def ranked_hits(scores: Sequence[float], found: Sequence[Hashable | None]) -> list[bool]:
    """Whether each is right, the highest score first: `found` names the object that was found, None for none.

    Of equal scores the earlier comes first, and an object that was found already is no hit again.
    """
    if len(scores) != len(found):
        raise ValueError(f"scores and found must be as many, got {len(scores)} and {len(found)}")
    if any(math.isnan(score) for score in scores):
        raise ValueError("scores must be numbers, got nan")
    seen: set[Hashable] = set()
    hits = []
    for place in sorted(range(len(scores)), key=lambda place: -scores[place]):
        name = found[place]
        hits.append(name is not None and name not in seen)
        seen.add(name)
    return hits


def precision_recall(hits: Sequence[bool], objects: int) -> PrecisionRecall:
    """Both after each rank of a list, in which `hits` says what is right; there are `objects` to be found."""
    found = _cumulative(hits, objects)
    return PrecisionRecall(
        [right / rank for rank, right in enumerate(found, 1)],
        [right / objects for right in found],
    )


def average_precision(hits: Sequence[bool], objects: int, points: int | None = None) -> float:
    """The mean best precision over every step of recall (None), or over 11 or 101 levels of it."""
    if points is not None and points not in LEVELS:
        raise ValueError(f"points must be None (every step of recall), 11 or 101, got {points}")
    curve = precision_recall(hits, objects)
    best = list(curve.precision)
    for rank in range(len(best) - 2, -1, -1):
        best[rank] = max(best[rank], best[rank + 1])
    if points is None:
        return sum(precision for precision, hit in zip(best, hits, strict=True) if hit) / objects
    total, rank = 0.0, 0
    for level in LEVELS[points]:
        while rank < len(best) and curve.recall[rank] < level:
            rank += 1
        total += best[rank] if rank < len(best) else 0.0
    return total / points


def _cumulative(hits: Sequence[bool], objects: int) -> list[int]:
    if objects < 1:
        raise ValueError(f"objects must be at least 1, got {objects}: with nothing to find there is no recall")
    right, found = 0, []
    for hit in hits:
        right += bool(hit)
        found.append(right)
    if right > objects:
        raise ValueError(f"hits has {right} right ones, but there are {objects} objects; a second find is no hit")
    return found
