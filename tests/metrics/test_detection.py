"""COCO's twelve figures against pycocotools; VOC by hand."""

import contextlib
import io
import random

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from qkv.metrics import CocoScores, Detections, Objects, coco_evaluate, voc_average_precision

CLASSES = 3


def draw(number):
    """Pictures with crowds, ties, empty classes, objects of every size, duplicates and boxes that are slightly off."""
    dice = random.Random(number)
    grid = dice.choice((1, 1, 8))  # whole numbers make equal IoUs
    truth, found = [], []
    for _ in range(dice.randint(1, 5)):
        rows, answers = [], []
        for _ in range(dice.randint(0, 6)):
            side = dice.choice((6, 20, 60, 200))
            x, y = dice.randrange(0, 300, grid), dice.randrange(0, 300, grid)
            w, h = dice.randint(1, side), dice.randint(1, side)
            rows.append((dice.randrange(dice.choice((1, CLASSES))), x, y, x + w, y + h, dice.random() < 0.2))
        for label, x1, y1, x2, y2, _ in rows * 2:
            if dice.random() < 0.8:
                moved = [v + dice.choice((0, 0, 1, dice.randint(-9, 9))) for v in (x1, y1)]
                size = [max(1, v + dice.choice((0, 0, dice.randint(-5, 5)))) for v in (x2 - x1, y2 - y1)]
                answers.append(
                    (
                        label if dice.random() < 0.8 else dice.randrange(CLASSES),
                        *moved,
                        moved[0] + size[0],
                        moved[1] + size[1],
                        round(dice.random(), dice.choice((1, 6))),
                    )
                )
        if dice.random() < 0.05:
            answers += [(0, 5, 5, 30, 30, round(dice.random(), 3)) for _ in range(120)]  # more than 100
        rows, answers = (np.array(x, dtype=float).reshape(len(x), 6) for x in (rows, answers))
        truth.append(Objects(rows[:, 1:5], rows[:, 0].astype(int), rows[:, 5].astype(bool)))
        found.append(Detections(answers[:, 1:5], answers[:, 0].astype(int), answers[:, 5]))
    return found, truth


def annotations(pictures):
    number = 0
    for i, picture in enumerate(pictures):
        for k, (x1, y1, x2, y2) in enumerate(picture.boxes.tolist()):
            number += 1
            yield i, k, {
                "id": number, "image_id": i + 1, "category_id": int(picture.classes[k]) + 1,
                "bbox": [x1, y1, x2 - x1, y2 - y1], "area": (x2 - x1) * (y2 - y1),
            }  # fmt: skip


def by_pycocotools(found, truth):
    judge_truth, judge_found = COCO(), COCO()
    frame = {
        "images": [{"id": i + 1} for i in range(len(truth))],
        "categories": [{"id": c + 1} for c in range(CLASSES)],
    }
    judge_truth.dataset = {
        **frame,
        "annotations": [{**row, "iscrowd": int(truth[i].ignored[k])} for i, k, row in annotations(truth)],
    }
    judge_found.dataset = {
        **frame,
        "annotations": [{**row, "score": float(found[i].scores[k])} for i, k, row in annotations(found)],
    }
    with contextlib.redirect_stdout(io.StringIO()):
        judge_truth.createIndex()
        judge_found.createIndex()
        judge = COCOeval(judge_truth, judge_found, "bbox")
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    return judge.stats


def compare(numbers):
    for number in numbers:
        found, truth = draw(number)
        scores = coco_evaluate(found, truth, CLASSES).scores
        assert list(scores.to_dict().values()) == pytest.approx(by_pycocotools(found, truth).tolist(), abs=1e-9), number


def test_twelve_figures_equal_pycocotools():
    compare(range(120))


@pytest.mark.slow
def test_twelve_figures_equal_pycocotools_in_a_thousand_cases():
    compare(range(1000))


def test_no_detections_and_no_objects():
    nothing = Detections(np.zeros((0, 4)), np.zeros(0, int), np.zeros(0))
    empty = Objects(np.zeros((0, 4)), np.zeros(0, int), np.zeros(0, bool))
    one = Objects(np.array([[0.0, 0.0, 9.0, 9.0]]), np.zeros(1, int), np.zeros(1, bool))
    assert coco_evaluate([nothing], [empty], 2).scores == CocoScores(*[-1.0] * 12)
    assert coco_evaluate([nothing], [one], 2).scores.mean_ap == 0.0
    assert coco_evaluate([nothing], [one], 2).class_ap() == [0.0, -1.0]


def test_perfect_detections():
    boxes = np.array([[0.0, 0.0, 9.0, 9.0], [20.0, 0.0, 70.0, 50.0]])
    truth = Objects(boxes, np.array([0, 1]), np.zeros(2, bool))
    result = coco_evaluate([Detections(boxes, np.array([0, 1]), np.array([0.4, 0.9]))], [truth], 2)
    assert result.scores.mean_ap == result.scores.ap_small == result.scores.ap_medium == pytest.approx(1.0)
    assert result.class_ap(0.5) == pytest.approx([1.0, 1.0])
    with pytest.raises(ValueError, match="threshold must be one of 0.5, 0.55, ..., 0.95, got 0.3"):
        result.class_ap(0.3)


def test_voc_counts_a_second_detection_of_an_object_as_wrong():
    truth = Objects(np.array([[0.0, 0.0, 10.0, 10.0], [0.0, 0.0, 10.0, 8.0]]), np.zeros(2, int), np.zeros(2, bool))
    found = Detections(np.array([[0.0, 0.0, 10.0, 10.0]] * 2), np.zeros(2, int), np.array([0.9, 0.8]))
    # the second box meets the first object best, which is found already; COCO gives it the other object
    assert voc_average_precision([found], [truth], 0) == 0.5
    assert coco_evaluate([found], [truth], 1).class_ap(0.5) == pytest.approx([1.0])


def test_voc_ignores_difficult_objects_and_inclusive_pixels_are_larger():
    truth = Objects(
        np.array([[0.0, 0.0, 1.0, 1.0], [50.0, 50.0, 60.0, 60.0]]), np.zeros(2, int), np.array([False, True])
    )
    found = Detections(
        np.array([[50.0, 50.0, 60.0, 60.0], [0.0, 0.0, 1.0, 3.0]]), np.zeros(2, int), np.array([0.9, 0.8])
    )
    assert voc_average_precision([found], [truth], 0, threshold=0.5) == 0.0  # IoU 1/3
    assert voc_average_precision([found], [truth], 0, threshold=0.5, inclusive=True) == 1.0  # IoU 4/8


def test_bad_input_different_numbers_of_pictures():
    with pytest.raises(ValueError, match="one entry per picture, got 0 and 1"):
        coco_evaluate([], [Objects(np.zeros((0, 4)), np.zeros(0, int), np.zeros(0, bool))], 1)
