"""Intervals of average precision: each resample is COCO's evaluation of the drawn pictures."""

import numpy as np
import pytest

from qkv.metrics import coco_evaluate
from qkv.metrics.detection_intervals import ap_intervals, resample_ap
from tests.metrics.boxes import detections, objects
from tests.metrics.test_detection import CLASSES, draw

A, B = (0, 0, 10, 10), (30, 30, 40, 40)


def test_each_resample_is_an_evaluation_of_the_drawn_pictures():
    found, truth = (a + b for a, b in zip(draw(3), draw(4), strict=True))
    drawn = resample_ap(found, truth, CLASSES, resamples=4, seed=1)
    generator = np.random.default_rng(1)
    for row in drawn:
        chosen = generator.integers(len(truth), size=len(truth))
        scores = coco_evaluate([found[i] for i in chosen], [truth[i] for i in chosen], CLASSES).scores
        np.testing.assert_allclose(row, [scores.ap50, scores.mean_ap], rtol=0, atol=1e-12)
    assert drawn.std(0).min() > 0


def test_intervals_contain_the_figure_and_are_wider_with_fewer_pictures():
    rows = [((0, 0.9, *A), A) if i % 3 else ((0, 0.9, *B), A) for i in range(60)]
    found, truth = [detections(row) for row, _ in rows], [objects((0, *box)) for _, box in rows]
    many, few = ap_intervals(found, truth, 1), ap_intervals(found[:12], truth[:12], 1)
    scores = coco_evaluate(found, truth, 1).scores
    assert many["ap50"][0] < scores.ap50 < many["ap50"][1]
    assert few["ap50"][1] - few["ap50"][0] > many["ap50"][1] - many["ap50"][0]


def test_perfect_detections_have_no_spread():
    found, truth = [detections((0, 0.9, *A))] * 5, [objects((0, *A))] * 5
    assert ap_intervals(found, truth, 2, resamples=20) == {"ap50": (1.0, 1.0), "mean_ap": (1.0, 1.0)}


def test_no_pictures_bad_input():
    with pytest.raises(ValueError, match="got 0 pictures"):
        ap_intervals([], [], 1)
