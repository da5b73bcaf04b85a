"""Group F: object detection."""

from qkv.problems.expectation import Answer, Near
from qkv.problems.record import register_open_problem, register_problem


@register_problem(
    "F1",
    hand_written="precision 1, 1, 2/3, 1/2, 2/5, 1/2, 3/7, 1/2; recall .25 .5 .5 .5 .5 .75 .75 1; "
    "average precision 0.75, 8.5/11, 76/101",
    expected={
        "precision": Near([1, 1, 2 / 3, 1 / 2, 2 / 5, 1 / 2, 3 / 7, 1 / 2], 1e-12),
        "recall": [0.25, 0.5, 0.5, 0.5, 0.5, 0.75, 0.75, 1.0],
        "average precision, every step": Near(0.75, 1e-12),
        "11 points": Near(8.5 / 11, 1e-12),
        "101 points": Near(76 / 101, 1e-12),
    },
)
def average_precision_of_eight() -> Answer:
    """Eight ranked detections of four objects: right, right, wrong, wrong, wrong, right, wrong, right.

    Precision and recall after each, and the average precision by its three definitions?
    """
    from qkv.metrics import average_precision, precision_recall

    hits = [True, True, False, False, False, True, False, True]
    curve = precision_recall(hits, objects=4)
    return {
        "precision": curve.precision,
        "recall": curve.recall,
        "average precision, every step": average_precision(hits, 4),
        "11 points": average_precision(hits, 4, points=11),
        "101 points": average_precision(hits, 4, points=101),
    }


register_open_problem(
    "F2",
    "R-CNN, Fast R-CNN and Faster R-CNN on one dataset: who proposes regions, who classifies them, and how well?",
    hand_written="proposals from outside and an SVM; proposals from outside and the network; both by the network",
)
