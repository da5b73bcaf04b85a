"""Precision-recall curves of object detection, and the score at which both are balanced best."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64
from numpy import ndarray

from qkv.metrics.detection import Detections, Objects, match_class, threshold_index


@dataclass(frozen=True)
class PrecisionRecallCurve:
    """Precision and recall of the detections of one class whose score is at least `scores[i]`, by falling score."""

    scores: Float64[ndarray, " ranks"]
    precision: Float64[ndarray, " ranks"]
    recall: Float64[ndarray, " ranks"]
    objects: int
    """Objects to be found; without any, recall is 0."""


def precision_recall_curve(
    detections: Sequence[Detections], objects: Sequence[Objects], label: int, *, threshold: float = 0.5
) -> PrecisionRecallCurve:
    """Return the curve of one class; `threshold` is the least IoU of a hit, one of COCO's ten.

    Hits are those of `coco_evaluate`. Equal scores share one point, so the curve does not depend on their order.
    """
    scores, hit, total = _ranked(detections, objects, label, threshold)
    return _curve(scores, hit, total)


def best_score(
    detections: Sequence[Detections], objects: Sequence[Objects], classes: int, *, threshold: float = 0.5
) -> float:
    """Return the least score to keep so that the F1 of all classes together is highest; 0.0 without a hit.

    F1 = 2 hits / (detections + objects)
    """
    found = [_ranked(detections, objects, label, threshold) for label in range(classes)]
    curve = _curve(
        np.concatenate([scores for scores, _, _ in found]) if found else np.zeros(0),
        np.concatenate([hit for _, hit, _ in found]) if found else np.zeros(0, bool),
        sum(total for _, _, total in found),
    )
    if not curve.recall.any():
        return 0.0
    total = curve.precision + curve.recall
    f1 = np.divide(2 * curve.precision * curve.recall, total, out=np.zeros_like(total), where=total > 0)
    return float(curve.scores[f1.argmax()])


def _ranked(
    detections: Sequence[Detections], objects: Sequence[Objects], label: int, threshold: float
) -> tuple[Float64[ndarray, " ranks"], Bool[ndarray, " ranks"], int]:
    """Return the scores of the detections that count, whether each is a hit, and the number of objects."""
    level = threshold_index(threshold)
    matches = [found for pair in zip(detections, objects, strict=True) if (found := match_class(*pair, label))]
    counted = [~match.ignored[0, level] for match in matches]
    scores = [match.scores[keep] for match, keep in zip(matches, counted, strict=True)]
    hits = [match.hit[0, level][keep] for match, keep in zip(matches, counted, strict=True)]
    total = sum(int(match.counted[0]) for match in matches)
    return np.concatenate([*scores, np.zeros(0)]), np.concatenate([*hits, np.zeros(0, bool)]), total


def _curve(scores: ndarray, hit: ndarray, total: int) -> PrecisionRecallCurve:
    order = np.argsort(-scores, kind="stable")
    scores, right = scores[order], np.cumsum(hit[order])
    last = np.append(scores[1:] != scores[:-1], True)[: len(scores)]  # of equal scores
    right, rank = right[last], np.arange(1, len(scores) + 1)[last]
    return PrecisionRecallCurve(scores[last], right / rank, right / max(total, 1), total)
