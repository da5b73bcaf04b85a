"""Errors of detections: each reason by hand, and counts that agree with COCO's matching."""

import numpy as np
import pytest

from qkv.metrics import coco_evaluate, detection_errors
from tests.metrics.boxes import detections, objects
from tests.metrics.test_detection import CLASSES, draw

SQUARE = (0, 0, 10, 10)
TRUTH = objects((0, *SQUARE), (1, 100, 100, 110, 110))


def errors_of(found, truth=TRUTH, **options):
    (picture,) = detection_errors([found], [truth], **options).pictures
    return picture


@pytest.mark.parametrize(
    ("label", "box", "reason"),
    [
        (0, (0, 0, 10, 8), ""),  # IoU 0.8
        (0, (0, 0, 10, 5), ""),  # IoU 0.5 exactly
        (0, (0, 0, 10, 4), "box off"),  # IoU 0.4
        (0, (0, 0, 10, 1), "box off"),  # IoU 0.1 exactly
        (0, (0, 0, 9, 1), "background"),  # IoU 0.09
        (1, (0, 0, 10, 8), "wrong class"),
        (1, (0, 0, 10, 4), "both"),
        (1, (0, 0, 9, 1), "background"),
        (0, (40, 40, 50, 50), "background"),
    ],
)
def test_one_false_positive_has_its_reason(label, box, reason):
    picture = errors_of(detections((label, 0.9, *box)))
    assert picture.false_positives == (reason,)
    assert picture.found.tolist() == ([0] if reason == "" else [-1])


def test_the_second_detection_of_an_object_is_a_duplicate_whatever_the_order():
    low, high = (0, 0.6, *SQUARE), (0, 0.9, 0, 0, 10, 9)
    assert errors_of(detections(low, high)).false_positives == ("duplicate", "")
    assert errors_of(detections(high, low)).false_positives == ("", "duplicate")


def test_an_object_of_another_class_below_explains_more_than_an_own_one_at_the_side():
    truth = objects((0, 0, 0, 10, 10), (1, 0, 8, 10, 18))
    # IoU with its own class 0.25, with the other one 0.67
    assert errors_of(detections((0, 0.9, 0, 6, 10, 16)), truth).false_positives == ("wrong class",)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (detections((0, 0.9, *SQUARE)), ""),
        (detections(), "not detected"),
        (detections((0, 0.9, 50, 50, 60, 60)), "not detected"),
        (detections((1, 0.9, *SQUARE)), "wrong class"),
        (detections((0, 0.9, 0, 0, 10, 4)), "box off"),
        (detections((1, 0.9, 0, 0, 10, 4)), "both"),
        (detections((0, 0.2, *SQUARE)), "low score"),
        (detections((0, 0.2, *SQUARE), (1, 0.9, *SQUARE)), "wrong class"),
        (detections((0, 0.2, *SQUARE), (0, 0.9, 0, 0, 10, 4)), "low score"),
        (detections((1, 0.2, *SQUARE)), "not detected"),
    ],
)
def test_a_missed_object_has_its_reason(found, reason):
    picture = errors_of(found, objects((0, *SQUARE)), min_score=0.5)
    assert picture.missed == (reason,)


def test_an_object_without_a_proposal_was_never_proposed():
    found, truth = detections((1, 0.9, *SQUARE)), objects((0, *SQUARE), (0, 30, 30, 40, 40))
    near = np.array([[30.0, 30.0, 40.0, 35.0], [0.0, 0.0, 10.0, 4.9]])  # IoU 0.5 and 0.49
    assert errors_of(found, truth, proposals=[near]).missed == ("never proposed", "not detected")
    assert errors_of(found, truth, proposals=[np.zeros((0, 4))]).missed == ("never proposed", "never proposed")
    assert errors_of(found, truth).missed == ("wrong class", "not detected")


def test_ignored_objects_are_not_missed_and_take_any_number_of_detections():
    truth = objects((0, *SQUARE), ignored=[0])
    found = detections((0, 0.9, *SQUARE), (0, 0.8, 0, 0, 10, 9), (1, 0.7, *SQUARE))
    result = detection_errors([found], [truth])
    assert result.objects == result.hits == 0
    assert result.pictures[0].missed == ("",)
    assert result.pictures[0].false_positives == ("", "", "wrong class")


def test_counts_are_summed_over_pictures():
    found = detections((0, 0.9, *SQUARE), (0, 0.8, *SQUARE), (1, 0.7, 300, 300, 310, 310))
    result = detection_errors([found, detections(), detections()], [TRUTH, TRUTH, objects()])
    assert (result.objects, result.hits) == (4, 1)
    assert result.false_positives == {"wrong class": 0, "box off": 0, "both": 0, "duplicate": 1, "background": 1}
    assert result.missed == {
        "never proposed": 0, "wrong class": 0, "low score": 0, "box off": 0, "both": 0, "not detected": 3,
    }  # fmt: skip
    assert [picture.count for picture in result.pictures] == [3, 2, 0]


def test_every_object_is_counted_once_and_hits_are_those_of_coco():
    cases = [draw(number) for number in range(60)]
    cases = [(f, t) for f, t in cases if max(len(one.scores) for one in f) <= 100]  # COCO takes no more per class
    assert len(cases) > 40
    for found, truth in cases:
        result = detection_errors(found, truth)
        assert result.hits + sum(result.missed.values()) == result.objects
        recall = coco_evaluate(found, truth, CLASSES).recall[0, :, 0, 2]
        counts = [sum(int(((o.classes == c) & ~o.ignored).sum()) for o in truth) for c in range(CLASSES)]
        assert result.hits == round(sum(r * n for r, n in zip(recall, counts, strict=True) if n))


def test_bad_input_of_different_lengths_is_refused():
    with pytest.raises(ValueError, match="one entry per picture, got 1, 2 and 2"):
        detection_errors([detections()], [TRUTH, TRUTH])
    with pytest.raises(ValueError, match="got 1, 1 and 0"):
        detection_errors([detections()], [TRUTH], proposals=[])
