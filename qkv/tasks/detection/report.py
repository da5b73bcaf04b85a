"""The report of a detector: AP and curve of each class, errors by reason, and the worst pictures, drawn."""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import UInt8
from numpy import ndarray

from qkv.draw import BoxMistake, BoxReport, ClassBoxes, DrawnBox, draw_boxes
from qkv.metrics import (
    Detections,
    Objects,
    PictureErrors,
    PrecisionRecallCurve,
    best_score,
    coco_evaluate,
    detection_errors,
    precision_recall_curve,
)

MAX_PICTURES = 12
MAX_LINES = 8
"""Mistakes of a picture that are listed."""

PixelReader = Callable[[int], UInt8[ndarray, "height width 3"]]


def make_box_report(
    detections: Sequence[Detections],
    objects: Sequence[Objects],
    classes: Sequence[str],
    pixels: PixelReader,
    name: Callable[[int], str],
    *,
    proposals: Sequence[ndarray] | None = None,
) -> BoxReport:
    """Return the results on a split.

    Args:
        detections: One entry per picture.
        objects: One entry per picture.
        classes: Names of the classes.
        pixels: Returns a picture by its index; it is called for the pictures that are drawn.
        name: Returns the name of a picture by its index.
        proposals: The regions of each picture that the detector classified (default: not known).
    """
    result = coco_evaluate(detections, objects, len(classes))
    least = best_score(detections, objects, len(classes))
    errors = detection_errors(detections, objects, proposals=proposals, min_score=least)
    worst = sorted(range(len(objects)), key=lambda index: -errors.pictures[index].count)
    wrong = [index for index in worst if errors.pictures[index].count]
    return BoxReport(
        classes=[
            _class_results(precision_recall_curve(detections, objects, label), classes[label], *figures)
            for label, figures in enumerate(zip(result.class_ap(0.5), result.class_ap(), strict=True))
        ],
        hits=errors.hits,
        objects=errors.objects,
        min_score=least,
        false_positives=errors.false_positives,
        missed=errors.missed if proposals is not None else _without_proposals(errors.missed),
        pictures=[
            BoxMistake(
                name(index),
                draw_boxes(pixels(index), drawn_boxes(detections[index], objects[index], classes, least), name(index)),
                describe_mistakes(errors.pictures[index], detections[index], objects[index], classes),
            )
            for index in wrong[:MAX_PICTURES]
        ],
        wrong_pictures=len(wrong),
    )


def drawn_boxes(found: Detections, truth: Objects, classes: Sequence[str], min_score: float) -> list[DrawnBox]:
    """Return the true objects, dashed, and the detections with at least this score, the surest last."""
    boxes = [
        DrawnBox(classes[label], _corners(box), color=label, is_true=True)
        for label, box in zip(truth.classes.tolist(), truth.boxes.tolist(), strict=True)
    ]
    kept = [i for i in np.argsort(found.scores, kind="stable").tolist() if found.scores[i] >= min_score]
    return boxes + [
        DrawnBox(
            classes[int(found.classes[i])],
            _corners(found.boxes[i].tolist()),
            float(found.scores[i]),
            int(found.classes[i]),
        )
        for i in kept
    ]


def describe_mistakes(errors: PictureErrors, found: Detections, truth: Objects, classes: Sequence[str]) -> list[str]:
    """Return a line per mistake: what was found wrongly, the surest first, then what was missed."""
    order = np.argsort(-found.scores, kind="stable").tolist()
    lines = [
        f"{classes[int(found.classes[i])]} {found.scores[i]:.2f}: {errors.false_positives[i]}"
        for i in order
        if errors.false_positives[i]
    ]
    lines += [
        f"{classes[int(label)]} missed: {reason}"
        for label, reason in zip(truth.classes, errors.missed, strict=True)
        if reason
    ]
    more = [f"{len(lines) - MAX_LINES:,} more"] if len(lines) > MAX_LINES else []
    return lines[:MAX_LINES] + more


def _class_results(curve: PrecisionRecallCurve, name: str, ap50: float, mean_ap: float) -> ClassBoxes:
    points = list(zip(curve.recall.tolist(), curve.precision.tolist(), strict=True)) if curve.objects else []
    return ClassBoxes(name, curve.objects, ap50, mean_ap, points)


def _without_proposals(missed: dict[str, int]) -> dict[str, int]:
    return {reason: count for reason, count in missed.items() if reason != "never proposed"}


def _corners(box: list[float]) -> tuple[float, float, float, float]:
    return box[0], box[1], box[2], box[3]
