"""The report of a detector, from detections made by hand and from an untrained model."""

import numpy as np
import pytest

from qkv.draw import report_page
from qkv.metrics import detection_errors
from qkv.tasks.base import RunSummary
from qkv.tasks.detection.report import describe_mistakes, drawn_boxes, make_box_report
from qkv.train import Settings
from tests.metrics.boxes import detections, objects
from tests.tasks.detection.scenes import tiny_model, tiny_task

A, B = (0, 0, 10, 10), (30, 30, 40, 40)
CLASSES = ("ace", "king")
TRUTH = [objects((0, *A), (1, *B)), objects((0, *A)), objects()]
FOUND = [
    detections((0, 0.9, *A), (0, 0.8, *B), (1, 0.1, *B)),  # the second has the wrong class
    detections((0, 0.7, *A)),
    detections(*[(1, 0.2, *A)] * 3),  # below the best score
]


def report(**options):
    return make_box_report(
        FOUND, TRUTH, CLASSES, lambda index: np.full((60, 80, 3), index, np.uint8), lambda index: f"p{index}", **options
    )


def test_counts_and_pictures_are_those_at_the_best_score():
    found = report()
    assert found.min_score == 0.7  # 2 hits of 3 detections and 3 objects
    assert (found.hits, found.objects) == (2, 3)
    assert found.false_positives == {"wrong class": 1, "box off": 0, "both": 0, "duplicate": 0, "background": 0}
    assert found.missed == {"wrong class": 1, "low score": 0, "box off": 0, "both": 0, "not detected": 0}
    assert [(one.name, one.mistakes) for one in found.pictures] == [
        ("p0", ["ace 0.80: wrong class", "king missed: wrong class"])
    ]
    assert found.wrong_pictures == 1
    ace, king = found.classes
    assert (ace.objects, ace.curve) == (2, [(0.5, 1.0), (0.5, 0.5), (1.0, pytest.approx(2 / 3))])
    assert (king.objects, king.ap50) == (1, pytest.approx(0.25))  # three in the picture without a king come first


def test_proposals_name_what_was_never_proposed():
    nothing = [np.zeros((0, 4))] * 3
    assert report(proposals=nothing).missed["never proposed"] == 1


def test_truth_is_dashed_and_the_surest_detection_is_on_top():
    boxes = drawn_boxes(FOUND[0], TRUTH[0], CLASSES, 0.5)
    assert [(box.label, box.score, box.is_true) for box in boxes] == [
        ("ace", None, True), ("king", None, True), ("ace", 0.8, False), ("ace", 0.9, False),
    ]  # fmt: skip
    assert boxes[0].corners == A


def test_long_lists_of_mistakes_are_cut():
    truth = objects(*[(0, *A)] * 20)
    (errors,) = detection_errors([detections()], [truth]).pictures
    lines = describe_mistakes(errors, detections(), truth, CLASSES)
    assert lines[0] == "ace missed: not detected"
    assert (len(lines), lines[-1]) == (9, "12 more")


@pytest.mark.parametrize("name", ["faster", "fast"])
def test_report_of_an_untrained_model(name):
    task = tiny_task()
    model = tiny_model(name, task)
    summary = RunSummary("detect", name, {}, Settings(steps=1), {}, [], {"test": {"ap50": 0.0}})
    made = task.report(model, summary)
    assert made.boxes.objects == sum(int((~task.splits["test"][i].difficult).sum()) for i in range(3))
    assert "never proposed" in made.boxes.missed
    page = report_page(made)
    assert "Missed objects" in page
    assert "test scene" in page
