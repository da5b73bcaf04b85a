"""Metrics of object detection: COCO's twelve figures and the average precision of Pascal VOC.

A detection is a hit if its IoU with an object of its class, not yet found, is at least a threshold; of several such
objects the one with the highest IoU is taken. Boxes are corners (x1, y1, x2, y2) in pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from jaxtyping import Bool, Float64, Int64
from numpy import ndarray

from qkv.metrics.ranking import RECALL_LEVELS, average_precision, ranked_hits

THRESHOLDS = np.linspace(0.5, 0.95, 10)
"""IoU thresholds of COCO's mean average precision."""
AREAS = {"all": (0.0, 1e10), "small": (0.0, 32.0**2), "medium": (32.0**2, 96.0**2), "large": (96.0**2, 1e10)}
"""Ranges of object area in square pixels, by COCO's names."""
MAX_DETECTIONS = (1, 10, 100)
"""Numbers of detections per picture and class that recall is given for."""


@dataclass(frozen=True)
class Objects:
    """The objects of one picture."""

    boxes: Float64[ndarray, "objects 4"]
    classes: Int64[ndarray, " objects"]
    ignored: Bool[ndarray, " objects"]
    """Crowds and difficult objects: neither found nor missed. A crowd may take any number of detections."""
    areas: Float64[ndarray, " objects"] | None = None
    """Areas that decide small, medium or large (default: of the boxes)."""


@dataclass(frozen=True)
class Detections:
    """The detections of one picture."""

    boxes: Float64[ndarray, "detections 4"]
    classes: Int64[ndarray, " detections"]
    scores: Float64[ndarray, " detections"]


@dataclass(frozen=True)
class CocoScores:
    """COCO's twelve figures, in its order; -1 where there is no object to find."""

    mean_ap: float
    """AP averaged over IoU thresholds 0.50 to 0.95 and over classes."""
    ap50: float
    ap75: float
    ap_small: float
    ap_medium: float
    ap_large: float
    ar1: float
    """Recall with at most 1 detection per picture and class, averaged as above."""
    ar10: float
    ar100: float
    ar_small: float
    ar_medium: float
    ar_large: float

    def to_dict(self) -> dict[str, float]:
        """Return the figures by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True)
class CocoResult:
    """Precision and recall behind the twelve figures."""

    precision: Float64[ndarray, "thresholds levels classes areas"]
    """Best precision at each recall level, with at most 100 detections; -1 without objects."""
    recall: Float64[ndarray, "thresholds classes areas limits"]

    @property
    def scores(self) -> CocoScores:
        """The twelve figures."""
        precision, recall = self.precision, self.recall
        small, medium, large = (list(AREAS).index(name) for name in ("small", "medium", "large"))
        return CocoScores(
            _mean(precision[..., 0]),
            _mean(precision[0, ..., 0]),
            _mean(precision[5, ..., 0]),
            *(_mean(precision[..., area]) for area in (small, medium, large)),
            *(_mean(recall[..., 0, limit]) for limit in range(3)),
            *(_mean(recall[..., area, 2]) for area in (small, medium, large)),
        )

    def class_ap(self, threshold: float | None = None) -> list[float]:
        """Return the AP of each class, at one threshold or averaged over all (None); -1 for a class without objects."""
        rows = self.precision[..., 0] if threshold is None else self.precision[threshold_index(threshold), ..., 0][None]
        return [_mean(rows[:, :, c]) for c in range(rows.shape[2])]


def coco_evaluate(detections: Sequence[Detections], objects: Sequence[Objects], classes: int) -> CocoResult:
    """Evaluate the detections of all pictures; classes are 0 to `classes` - 1."""
    if len(detections) != len(objects):
        raise ValueError(
            f"detections and objects must have one entry per picture, got {len(detections)} and {len(objects)}"
        )
    levels = np.array(RECALL_LEVELS[101])
    precision = np.full((len(THRESHOLDS), len(levels), classes, len(AREAS)), -1.0)
    recall = np.full((len(THRESHOLDS), classes, len(AREAS), len(MAX_DETECTIONS)), -1.0)
    for c in range(classes):
        matches = [match for pair in zip(detections, objects, strict=True) if (match := match_class(*pair, c))]
        for a in range(len(AREAS)):
            count = sum(match.counted[a] for match in matches)
            if not count:
                continue
            for m, most in enumerate(MAX_DETECTIONS):
                best, reached = accumulate_matches(matches, a, most, count, levels)
                recall[:, c, a, m] = reached
                if most == MAX_DETECTIONS[-1]:
                    precision[:, :, c, a] = best
    return CocoResult(precision, recall)


def voc_average_precision(
    detections: Sequence[Detections],
    objects: Sequence[Objects],
    label: int,
    *,
    threshold: float = 0.5,
    points: int | None = None,
    inclusive: bool = False,
) -> float:
    """Return the average precision of one class by Pascal VOC's rules; -1 if it has no object.

    A detection is compared with the object of highest IoU alone: if that one is found already, it is a false positive.
    `points`: None for every step of recall (VOC since 2010), 11 for the earlier definition. `inclusive`: corners are
    pixels that belong to the box, so a width is x2 - x1 + 1.
    """
    scores: list[float] = []
    found: list[tuple[int, int] | None] = []
    total = 0
    for picture, (given, truth) in enumerate(zip(detections, objects, strict=True)):
        targets, mine = truth.classes == label, given.classes == label
        ignored = truth.ignored[targets]
        total += int((~ignored).sum())
        overlaps = box_iou(given.boxes[mine], truth.boxes[targets], inclusive=inclusive)
        for score, row in zip(given.scores[mine].tolist(), overlaps, strict=True):
            best = int(row.argmax()) if row.size else -1
            hit = best >= 0 and row[best] >= threshold
            if not (hit and ignored[best]):
                scores.append(score)
                found.append((picture, best) if hit else None)
    return average_precision(ranked_hits(scores, found), total, points) if total else -1.0


def box_iou(
    boxes: Float64[ndarray, "boxes 4"],
    others: Float64[ndarray, "others 4"],
    crowd: Bool[ndarray, " others"] | None = None,
    *,
    inclusive: bool = False,
) -> Float64[ndarray, "boxes others"]:
    """Return the IoU of every pair; against a `crowd`, intersection over the area of the box."""
    more = 1.0 if inclusive else 0.0
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    inter = np.clip(high - low + more, 0, None).prod(-1)
    area, other_area = ((x[:, 2:] - x[:, :2] + more).prod(-1) for x in (boxes, others))
    union = area[:, None] + other_area[None] - inter
    if crowd is not None:
        union = np.where(crowd[None], area[:, None], union)
    return np.divide(inter, union, out=np.zeros_like(inter), where=union > 0)


@dataclass(frozen=True)
class ClassMatches:
    """The detections of one class in one picture, highest score first, and which of them are hits."""

    scores: Float64[ndarray, " detections"]
    hit: Bool[ndarray, "areas thresholds detections"]
    ignored: Bool[ndarray, "areas thresholds detections"]
    """Detections that evaluation skips: of ignored objects, or without an object and with an area out of range."""
    counted: Int64[ndarray, " areas"]
    """Number of objects that are not ignored."""


def match_class(given: Detections, truth: Objects, label: int) -> ClassMatches | None:
    """Match the detections of one class in a picture to its objects; None if it has neither."""
    mine, targets = given.classes == label, truth.classes == label
    order = np.argsort(-given.scores[mine], kind="stable")[: MAX_DETECTIONS[-1]]
    boxes, scores = given.boxes[mine][order], given.scores[mine][order]
    crowd, goal = truth.ignored[targets], truth.boxes[targets]
    if not len(boxes) and not len(goal):
        return None
    areas = truth.areas[targets] if truth.areas is not None else (goal[:, 2:] - goal[:, :2]).prod(-1)
    low, high = np.array(list(AREAS.values())).T[..., None]
    out_of_range = crowd | (areas < low) | (areas > high)  # [areas, objects]
    hit, ignored = _assign(box_iou(boxes, goal, crowd), crowd, out_of_range)
    own_area = (boxes[:, 2:] - boxes[:, :2]).prod(-1)
    odd = (own_area < low) | (own_area > high)  # [areas, detections]
    return ClassMatches(scores, hit, ignored | (~hit & odd[:, None]), (~out_of_range).sum(1))


def _assign(overlaps: ndarray, crowd: ndarray, skipped: ndarray) -> tuple[ndarray, ndarray]:
    """Assign objects to detections greedily; return (hit, hit of a skipped object), (areas, thresholds, detections).

    An object that counts goes before a skipped one. Ties in IoU go to the last object, as in COCO's evaluator.
    """
    detections, objects = overlaps.shape
    shape = (len(AREAS), len(THRESHOLDS))
    hit, ignored = (np.zeros((*shape, detections), bool) for _ in range(2))
    if not objects:
        return hit, ignored
    taken = np.zeros((*shape, objects), bool)
    least = np.minimum(THRESHOLDS, 1 - 1e-10)[None, :, None]
    counts = np.broadcast_to(~skipped[:, None], taken.shape)
    for d in range(detections):
        free = (overlaps[d] >= least) & (~taken | crowd)
        wanted = free & counts
        use = np.where(wanted.any(-1, keepdims=True), wanted, free)
        best = objects - 1 - np.where(use, overlaps[d], -1.0)[..., ::-1].argmax(-1)
        found = use.any(-1)
        hit[..., d] = found
        ignored[..., d] = found & ~np.take_along_axis(counts, best[..., None], -1)[..., 0]
        area, threshold = np.nonzero(found)
        taken[area, threshold, best[area, threshold]] = True
    return hit, ignored


def accumulate_matches(
    matches: list[ClassMatches], area: int, most: int, count: int, levels: ndarray
) -> tuple[ndarray, ndarray]:
    """Return (precision at each level, recall) per threshold, with at most `most` detections per picture."""
    order = np.argsort(-np.concatenate([m.scores[:most] for m in matches]), kind="stable")
    hit = np.concatenate([m.hit[area, :, :most] for m in matches], 1)[:, order]
    ignored = np.concatenate([m.ignored[area, :, :most] for m in matches], 1)[:, order]
    right = np.cumsum(hit & ~ignored, 1)
    wrong = np.cumsum(~hit & ~ignored, 1)
    best = np.zeros((len(THRESHOLDS), len(levels)))
    if not len(order):
        return best, np.zeros(len(THRESHOLDS))
    recall = right / count
    precision = right / (right + wrong + np.spacing(1))
    precision = np.maximum.accumulate(precision[:, ::-1], 1)[:, ::-1]
    for t in range(len(THRESHOLDS)):
        index = np.searchsorted(recall[t], levels, side="left")
        inside = index < len(order)
        best[t, inside] = precision[t, index[inside]]
    return best, recall[:, -1]


def threshold_index(threshold: float) -> int:
    """Return the place of a threshold in THRESHOLDS."""
    index = int(np.abs(THRESHOLDS - threshold).argmin())
    if abs(THRESHOLDS[index] - threshold) > 1e-9:
        raise ValueError(f"threshold must be one of 0.5, 0.55, ..., 0.95, got {threshold}")
    return index


def _mean(values: ndarray) -> float:
    known = values[values > -1]
    return float(known.mean()) if known.size else -1.0
