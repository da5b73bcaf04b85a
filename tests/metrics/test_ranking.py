import contextlib
import io
import random

import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from qkv.metrics import average_precision, precision_recall, ranked_hits

EIGHT = [True, True, False, False, False, True, False, True]


def test_eight_detections_of_four_objects_by_hand():
    curve = precision_recall(EIGHT, 4)
    assert curve.precision == pytest.approx([1, 1, 2 / 3, 1 / 2, 2 / 5, 1 / 2, 3 / 7, 1 / 2], abs=1e-15)
    assert curve.recall == [0.25, 0.5, 0.5, 0.5, 0.5, 0.75, 0.75, 1.0]
    assert average_precision(EIGHT, 4) == pytest.approx(0.75, abs=1e-15)
    assert average_precision(EIGHT, 4, points=11) == pytest.approx(8.5 / 11, abs=1e-15)
    assert average_precision(EIGHT, 4, points=101) == pytest.approx(76 / 101, abs=1e-15)


def loop(hits, objects, levels):
    """The definition, level by level: the best precision among ranks of at least that recall."""
    total = 0.0
    for numerator, denominator in levels:
        reached = []
        for rank in range(1, len(hits) + 1):
            right = sum(hits[:rank])
            if right * denominator >= numerator * objects:
                reached.append(right / rank)
        total += max(reached, default=0.0)
    return total / len(levels)


def draw(number):
    """Scores with many ties, repeated and false detections, and objects never found."""
    dice = random.Random(number)
    objects, count = dice.randint(1, 40), dice.randint(1, 90)
    scores = [round(dice.random(), dice.choice((1, 1, 2, 6))) for _ in range(count)]
    found = [dice.choice((None, dice.randrange(objects), dice.randrange(objects))) for _ in range(count)]
    return scores, found, objects


@pytest.mark.parametrize("number", range(200))
def test_every_step_and_eleven_points_by_a_plain_loop(number):
    scores, found, objects = draw(number)
    hits = ranked_hits(scores, found)
    every = loop(hits, objects, [(right, objects) for right in range(1, objects + 1)])
    assert average_precision(hits, objects) == pytest.approx(every, abs=1e-12)
    eleven = loop(hits, objects, [(n, 10) for n in range(11)])
    assert average_precision(hits, objects, points=11) == pytest.approx(eleven, abs=1e-12)


def coco(scores, found, objects):
    """COCO's own evaluator: object k is a box at 100 k, a detection that found it is that very box."""

    def box(place):
        return [100 * place, 0, 10, 10]

    truth, detected = COCO(), COCO()
    truth.dataset = {
        "images": [{"id": 1}],
        "categories": [{"id": 1}],
        "annotations": [
            {"id": n + 1, "image_id": 1, "category_id": 1, "iscrowd": 0, "area": 100, "bbox": box(n)}
            for n in range(objects)
        ],
    }
    answers = [
        {"id": n + 1, "image_id": 1, "category_id": 1, "area": 100, "score": score, "bbox": box(-1 if k is None else k)}
        for n, (score, k) in enumerate(zip(scores, found, strict=True))
    ]
    detected.dataset = {**truth.dataset, "annotations": answers}
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        detected.createIndex()
        judge = COCOeval(truth, detected, "bbox")
        judge.params.maxDets = [1000]
        judge.evaluate()
        judge.accumulate()
    return judge.eval["precision"][0, :, 0, 0, 0].mean()


@pytest.mark.parametrize("number", range(200))
def test_a_hundred_and_one_points_by_coco_s_own_evaluator(number):
    scores, found, objects = draw(number)
    ours = average_precision(ranked_hits(scores, found), objects, points=101)
    assert ours == pytest.approx(coco(scores, found, objects), abs=1e-9)


def test_a_recall_of_seven_twentieths_misses_coco_s_level():
    """Seven hits of twenty reach recall 0.35, but COCO's level is 35 * 0.01, a little more: 35 levels, not 36."""
    hits = [True] * 7
    assert average_precision(hits, 20, points=101) == pytest.approx(35 / 101, abs=1e-15)
    assert coco([0.5] * 7, range(7), 20) == pytest.approx(35 / 101, abs=1e-12)


def test_ties_keep_their_order_and_only_the_first_detection_hits():
    scores = [0.3, 0.9, 0.5, 0.5, 0.9]
    found = ["a", "b", None, "a", "b"]
    assert ranked_hits(scores, found) == [True, False, False, True, False]


def test_nothing_found():
    assert precision_recall([], 3).recall == []
    assert [average_precision([], 3, points=p) for p in (None, 11, 101)] == [0.0, 0.0, 0.0]
    assert ranked_hits([], []) == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: precision_recall([True], 0), "objects must be at least 1, got 0"),
        (lambda: precision_recall([True, True], 1), "hits must be at most objects=1, got 2"),
        (lambda: average_precision([True], 1, points=7), "points must be None .*, 11 or 101, got 7"),
        (lambda: ranked_hits([0.5], []), "scores and found must have the same length, got 1 and 0"),
        (lambda: ranked_hits([float("nan")], [None]), "scores must not contain NaN"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
