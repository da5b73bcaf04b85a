"""Group F: object detection."""

from qkv.problems.expectation import Answer, AtLeast, Near
from qkv.problems.record import register_problem


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


@register_problem(
    "F2",
    hand_written="R-CNN: proposals from outside, classes by SVMs outside; Fast R-CNN: proposals from outside, "
    "classes by the network; Faster R-CNN: both by the network",
    expected={
        "proposals": {"rcnn": "outside", "fast": "outside", "faster": "the network"},
        "classes": {"rcnn": "outside", "fast": "the network", "faster": "the network"},
        "stages of training": {"rcnn": 3, "fast": 1, "faster": 1},
        "AP50": AtLeast(0.65),
        "times as fast as rcnn": AtLeast(1.0),
        "faster, times as fast as fast": AtLeast(1.5),
    },
    slow=True,
)
def three_detectors() -> Answer:
    """R-CNN, Fast R-CNN and Faster R-CNN on one dataset: who proposes regions, who classifies them, and how well?

    Three trained detectors look at 40 test scenes. What proposes or classifies is outside if its loss does not move
    the network.
    """
    import torch

    from qkv.models import detectors
    from qkv.problems import trained_detector
    from qkv.train import Settings

    proposals, classes, stages, ap50, ms = {}, {}, {}, {}, {}
    for name in ("rcnn", "fast", "faster"):
        task, detector = trained_detector(name, test_scenes=40)
        figures = task.evaluate(detector, "test")
        ap50[name], ms[name] = figures["ap50"], figures["ms_per_picture"]
        stages[name] = len(detector.stages)
        proposals[name] = "outside" if detector.needs_proposals else "the network"
        classifier_stage = torch.tensor(min(1, len(detector.stages) - 1))
        detector.loss(
            detectors.DetectionBatch(*task.example_batch(Settings(steps=1)))._replace(stage=classifier_stage)
        ).backward()
        is_moved = any(weight.grad is not None for weight in detector.get_submodule("backbone").parameters())
        classes[name] = "the network" if is_moved else "outside"
    return {
        "proposals": proposals,
        "classes": classes,
        "stages of training": stages,
        "AP50": ap50,
        "ms per picture, proposals included": ms,
        "times as fast as rcnn": [ms["rcnn"] / ms["fast"], ms["rcnn"] / ms["faster"]],
        "faster, times as fast as fast": ms["fast"] / ms["faster"],
    }
