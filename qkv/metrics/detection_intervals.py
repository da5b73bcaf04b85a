"""Intervals of average precision: how far it would move with other test pictures of the same kind.

Pictures are drawn with replacement, as many as there are (bootstrap); objects of one picture stay together.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from qkv.metrics.detection import MAX_DETECTIONS, ClassMatches, Detections, Objects, accumulate_matches, match_class
from qkv.metrics.ranking import RECALL_LEVELS

COVERAGE = 0.95


def ap_intervals(
    detections: Sequence[Detections], objects: Sequence[Objects], classes: int, *, resamples: int = 1000, seed: int = 0
) -> dict[str, tuple[float, float]]:
    """Return the 95 % intervals of "ap50" and "mean_ap"."""
    drawn = resample_ap(detections, objects, classes, resamples=resamples, seed=seed)
    low, high = np.quantile(drawn, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2], axis=0)
    return {name: (float(low[i]), float(high[i])) for i, name in enumerate(("ap50", "mean_ap"))}


def resample_ap(
    detections: Sequence[Detections], objects: Sequence[Objects], classes: int, *, resamples: int, seed: int = 0
) -> Float64[ndarray, "resamples 2"]:
    """Return AP50 and mean AP of each set of drawn pictures; -1 if it has no object."""
    if resamples < 1 or not objects:
        raise ValueError(f"give pictures and at least 1 resample, got {len(objects)} pictures, resamples={resamples}")
    generator = np.random.default_rng(seed)
    matches = [
        [match_class(found, truth, c) for found, truth in zip(detections, objects, strict=True)] for c in range(classes)
    ]
    drawn = np.full((resamples, 2), -1.0)
    for row in drawn:
        pictures = generator.integers(len(objects), size=len(objects))
        precision = [
            p for own in matches if (p := _class_precision([m for i in pictures if (m := own[i])])) is not None
        ]
        if precision:
            row[:] = np.mean([p[0] for p in precision]), np.mean(precision)
    return drawn


def _class_precision(matches: list[ClassMatches]) -> ndarray | None:
    """Return the precision at each threshold and recall level; None without objects."""
    count = sum(int(match.counted[0]) for match in matches)
    levels = np.array(RECALL_LEVELS[101])
    return accumulate_matches(matches, 0, MAX_DETECTIONS[-1], count, levels)[0] if count else None
