"""Precision-recall curves by hand and against COCO's; the score of highest F1."""

import numpy as np
import pytest

from qkv.metrics import best_score, coco_evaluate, precision_recall_curve
from tests.metrics.boxes import detections, objects
from tests.metrics.test_detection import CLASSES, draw

A, B, NOWHERE = (0, 0, 10, 10), (30, 30, 40, 40), (80, 80, 90, 90)
TRUTH = objects((0, *A), (0, *B))


def test_curve_of_three_detections():
    found = detections((0, 0.5, *B), (0, 0.9, *A), (0, 0.7, *NOWHERE))
    curve = precision_recall_curve([found], [TRUTH], 0)
    assert curve.scores.tolist() == [0.9, 0.7, 0.5]
    assert curve.precision.tolist() == [1, 1 / 2, 2 / 3]
    assert curve.recall.tolist() == [1 / 2, 1 / 2, 1]
    assert curve.objects == 2


def test_equal_scores_are_one_point():
    found = detections((0, 0.9, *NOWHERE), (0, 0.9, *A), (0, 0.9, *B))
    curve = precision_recall_curve([found], [TRUTH], 0)
    assert (curve.scores.tolist(), curve.precision.tolist(), curve.recall.tolist()) == ([0.9], [2 / 3], [1])


def test_a_class_without_detections_or_objects_has_an_empty_curve():
    assert precision_recall_curve([detections()], [TRUTH], 0).precision.size == 0
    alone = precision_recall_curve([detections((1, 0.9, *A))], [TRUTH], 1)
    assert (alone.precision.tolist(), alone.recall.tolist(), alone.objects) == ([0], [0], 0)


def test_highest_precision_at_each_recall_is_that_of_coco():
    for number in range(20):
        found, truth = draw(number)
        found = [type(f)(f.boxes, f.classes, f.scores + np.arange(len(f.scores)) * 1e-7 + i * 1e-5)  # no ties
                 for i, f in enumerate(found)]  # fmt: skip
        precision = coco_evaluate(found, truth, CLASSES).precision[0, :, :, 0]
        for label in range(CLASSES):
            curve = precision_recall_curve(found, truth, label)
            best = [curve.precision[curve.recall >= r * 0.01].max(initial=0.0) for r in range(101)]
            wanted = precision[:, label] if curve.objects else np.zeros(101)
            np.testing.assert_allclose(np.where(curve.objects, best, 0), wanted, atol=1e-9)


def test_best_score_has_the_highest_f1():
    # keeping 0.9: F1 = 2/3; down to 0.5: 2 * 2 / (2 + 3) = 4/5; down to 0.2: 2 * 2 / (2 + 4) = 2/3
    found = detections((0, 0.9, *A), (0, 0.7, *NOWHERE), (0, 0.5, *B), (1, 0.2, *NOWHERE))
    assert best_score([found], [TRUTH], 2) == 0.5
    assert best_score([detections((0, 0.9, *NOWHERE))], [TRUTH], 1) == 0.0
    assert best_score([detections()], [TRUTH], 1) == 0.0


def test_bad_input_threshold_is_refused():
    with pytest.raises(ValueError, match="threshold must be one of"):
        precision_recall_curve([detections()], [TRUTH], 0, threshold=0.3)
