"""What a detector found wrongly, what it missed, and why, in the spirit of TIDE (Bolya et al., 2020).

Detections with a score of at least `min_score` are compared with the objects by falling score. A detection is a hit if
its IoU with an object of its class, not yet found, is at least 0.5. One that lies on an ignored object of its class
does not count. Every other detection is a false positive. Its reason is the first that holds:

    duplicate      IoU >= 0.5 with an object of its class, which is found already
    wrong class    IoU >= 0.5 with an object of another class
    box off        IoU >= 0.1 with an object of its class
    both           IoU >= 0.1 with an object of another class
    background     IoU < 0.1 with every object

Ignored objects take part in these comparisons.

An object that is not ignored and that no detection hits is missed. Its reason is the first that holds:

    never proposed    no proposal has IoU >= 0.5 with it; only if proposals are given
    wrong class       a false positive of another class has IoU >= 0.5 with it
    low score         a detection of its class below `min_score` has IoU >= 0.5 with it
    box off           a false positive of its class has IoU >= 0.1 with it
    both              a false positive of another class has IoU >= 0.1 with it
    not detected      none of these
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int64
from numpy import ndarray

from qkv.metrics.detection import Detections, Objects, box_iou

HIT_IOU = 0.5
NEAR_IOU = 0.1
"""Least IoU of a box that means an object, though it is off."""
FALSE_POSITIVE_REASONS = ("wrong class", "box off", "both", "duplicate", "background")
MISS_REASONS = ("never proposed", "wrong class", "low score", "box off", "both", "not detected")


@dataclass(frozen=True)
class PictureErrors:
    """The errors of one picture."""

    found: Int64[ndarray, " detections"]
    """The object that each detection hits, -1 for none."""
    false_positives: tuple[str, ...]
    """The reason of each detection that is a false positive; empty for a hit, an ignored one or a low score."""
    missed: tuple[str, ...]
    """The reason of each object that is missed; empty for one that is found or ignored."""

    @property
    def count(self) -> int:
        """Number of false positives and missed objects."""
        return sum(map(bool, self.false_positives + self.missed))


@dataclass(frozen=True)
class DetectionErrors:
    """The errors in all pictures."""

    pictures: tuple[PictureErrors, ...]
    objects: int
    """Objects to be found."""
    min_score: float

    @property
    def hits(self) -> int:
        """Number of objects that were found."""
        return sum(int((picture.found >= 0).sum()) for picture in self.pictures)

    @property
    def false_positives(self) -> dict[str, int]:
        """Number of false positives by reason."""
        counts = Counter(reason for picture in self.pictures for reason in picture.false_positives)
        return {reason: counts[reason] for reason in FALSE_POSITIVE_REASONS}

    @property
    def missed(self) -> dict[str, int]:
        """Number of missed objects by reason."""
        counts = Counter(reason for picture in self.pictures for reason in picture.missed)
        return {reason: counts[reason] for reason in MISS_REASONS}


def detection_errors(
    detections: Sequence[Detections],
    objects: Sequence[Objects],
    *,
    proposals: Sequence[Float64[ndarray, "_ 4"]] | None = None,
    min_score: float = 0.0,
) -> DetectionErrors:
    """Return the errors of the detections of all pictures.

    Args:
        detections: One entry per picture.
        objects: One entry per picture.
        proposals: The regions of each picture that the detector classified (default: not known).
        min_score: Least score of a detection that counts.
    """
    given = len(objects) if proposals is None else len(proposals)
    if not len(detections) == len(objects) == given:
        raise ValueError(
            "detections, objects and proposals must have one entry per picture, got "
            f"{len(detections)}, {len(objects)} and {given}"
        )
    pictures = tuple(
        _picture_errors(found, truth, None if proposals is None else proposals[index], min_score)
        for index, (found, truth) in enumerate(zip(detections, objects, strict=True))
    )
    return DetectionErrors(pictures, sum(int((~truth.ignored).sum()) for truth in objects), min_score)


def _picture_errors(given: Detections, truth: Objects, proposals: ndarray | None, min_score: float) -> PictureErrors:
    overlaps = box_iou(given.boxes, truth.boxes)
    same = given.classes[:, None] == truth.classes[None]
    used = given.scores >= min_score
    found, skipped = _assign(given, truth, same, used)
    wrong = used & (found < 0) & ~skipped
    reasons = tuple(_false_positive_reason(overlaps[d], same[d]) if wrong[d] else "" for d in range(len(given.scores)))
    missed = ~truth.ignored
    missed[found[found >= 0]] = False
    regions = truth.boxes if proposals is None else proposals
    covered = box_iou(regions, truth.boxes).max(0, initial=0.0) >= HIT_IOU
    return PictureErrors(
        found,
        reasons,
        tuple(
            _miss_reason(overlaps[:, k], same[:, k], wrong, used, is_proposed=bool(covered[k])) if missed[k] else ""
            for k in range(len(missed))
        ),
    )


def _assign(
    given: Detections, truth: Objects, same: Bool[ndarray, "detections objects"], used: Bool[ndarray, " detections"]
) -> tuple[Int64[ndarray, " detections"], Bool[ndarray, " detections"]]:
    """Return the object that each detection hits (-1: none), and which detections lie on an ignored object.

    The rules are those of `coco_evaluate`: an ignored object is a crowd, and ties in IoU go to the last object.
    """
    overlaps = box_iou(given.boxes, truth.boxes, truth.ignored)
    near = same & (overlaps >= HIT_IOU)
    free = ~truth.ignored
    found = np.full(len(given.scores), -1)
    skipped = np.zeros(len(given.scores), bool)
    for d in np.argsort(-given.scores, kind="stable").tolist():
        if not used[d]:
            continue
        open_to = near[d] & free
        if open_to.any():
            found[d] = len(free) - 1 - np.where(open_to, overlaps[d], -1.0)[::-1].argmax()
            free[found[d]] = False
        else:
            skipped[d] = (near[d] & truth.ignored).any()
    return found, skipped


def _false_positive_reason(overlaps: Float64[ndarray, " objects"], same: Bool[ndarray, " objects"]) -> str:
    own, other = overlaps[same].max(initial=0.0), overlaps[~same].max(initial=0.0)
    checks = {
        "duplicate": own >= HIT_IOU,
        "wrong class": other >= HIT_IOU,
        "box off": own >= NEAR_IOU,
        "both": other >= NEAR_IOU,
    }
    return next((reason for reason, holds in checks.items() if holds), "background")


def _miss_reason(
    overlaps: Float64[ndarray, " detections"],
    same: Bool[ndarray, " detections"],
    wrong: Bool[ndarray, " detections"],
    used: Bool[ndarray, " detections"],
    *,
    is_proposed: bool,
) -> str:
    own, other = overlaps[wrong & same].max(initial=0.0), overlaps[wrong & ~same].max(initial=0.0)
    checks = {
        "never proposed": not is_proposed,
        "wrong class": other >= HIT_IOU,
        "low score": overlaps[same & ~used].max(initial=0.0) >= HIT_IOU,
        "box off": own >= NEAR_IOU,
        "both": other >= NEAR_IOU,
    }
    return next((reason for reason, holds in checks.items() if holds), "not detected")
