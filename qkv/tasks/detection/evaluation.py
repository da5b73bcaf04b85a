"""Detections of a whole split: metrics, the time of each part, and the two ceilings of a detector.

The ceilings tell which part fails: the recall of the proposals (no detector finds what is not proposed), and the
accuracy of the classes on the true boxes (no detector is better than its classifier).
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from qkv.inference.progress import track
from qkv.metrics.detection import Detections, Objects, coco_evaluate
from qkv.models.detectors import Detection, Detector, RegionDetector
from qkv.models.regions import iou
from qkv.tasks.detection.pictures import LabeledPicture, PictureSet, collate_pictures
from qkv.tasks.detection.proposals import propose

PARTS = ("proposals", "backbone", "regions", "nms")


class SplitDetections(NamedTuple):
    """What was found in a split, what was there, and the regions that were looked at."""

    found: list[Detections]
    objects: list[Objects]
    proposed: list[Tensor]
    """(regions, 4) of each picture; empty if they were not asked for, or for a detector without proposals."""


@dataclass
class _Clock:
    """Seconds of each part over all pictures."""

    device: torch.device
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    last: float = 0.0

    def start(self) -> None:
        self._wait()
        self.last = time.perf_counter()

    def __call__(self, part: str) -> None:
        self._wait()
        now = time.perf_counter()
        self.seconds[part] += now - self.last
        self.last = now

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


@torch.inference_mode()
def detect_all(
    detector: Detector,
    pictures: PictureSet,
    may_stop: Callable[[], None] = lambda: None,
    *,
    with_proposals: bool = False,
) -> SplitDetections:
    """Return the detections of all pictures, one picture at a time, as `qkv predict` runs."""
    detector.eval()
    device = next(detector.parameters()).device
    result = SplitDetections([], [], [])
    for index in track(range(len(pictures))):
        may_stop()
        item = pictures[index]
        inputs = _inputs(detector, item, device)
        (found,) = detector.detect(*inputs)
        result.found.append(to_detections(found))
        result.objects.append(to_objects(item))
        if with_proposals and isinstance(detector, RegionDetector):
            result.proposed.append(_proposed_regions(detector, inputs))
    return result


def evaluate_detector(detector: Detector, pictures: PictureSet, classes: int) -> dict[str, float]:
    """Return COCO's figures, the ceilings, and milliseconds per picture by part."""
    detector.eval()
    device = next(detector.parameters()).device
    clock, tally = _Clock(device), _Tally()
    found, objects = [], []
    for index in track(range(len(pictures))):
        item = pictures[index]
        inputs = _inputs(detector, item, device)
        if not index:
            detector.detect(*inputs)  # the first call allocates and compiles
        clock.start()
        (detection,) = detector.detect(*inputs, clock)
        found.append(to_detections(detection))
        objects.append(to_objects(item))
        tally.add(detector, item, inputs)
    scores = coco_evaluate(found, objects, classes).scores
    ms = {part: 1000 * seconds / len(pictures) for part, seconds in clock.seconds.items()}
    if detector.needs_proposals:
        ms["proposals"] += (
            1000 * sum(propose(pictures[i].picture).seconds for i in range(len(pictures))) / len(pictures)
        )
    return {
        "ap50": scores.ap50,
        "mean_ap": scores.mean_ap,
        "ap75": scores.ap75,
        "ar100": scores.ar100,
        **tally.metrics(len(pictures)),
        "ms_per_picture": sum(ms.values()),
        **{f"{part}_ms": value for part, value in ms.items()},
        "stages": len(detector.stages),
        "pictures": len(pictures),
    }


class _Tally:
    """Counts behind the ceilings."""

    def __init__(self) -> None:
        self.objects = self.regions = self.near50 = self.near70 = self.right = 0
        self.has_regions = False

    def add(self, detector: Detector, item: LabeledPicture, inputs: tuple[Tensor, ...]) -> None:
        """Count the objects of a picture that were proposed, and those whose true box gets the right class."""
        if not isinstance(detector, RegionDetector):
            return
        self.has_regions = True
        counted = ~item.difficult
        true, classes = item.boxes[counted], item.classes[counted]
        proposed, predicted = _look_at_regions(detector, inputs, true)
        best = iou(true, proposed).amax(1) if len(proposed) else torch.zeros(len(true))
        self.objects += len(true)
        self.regions += len(proposed)
        self.near50 += int((best >= 0.5).sum())
        self.near70 += int((best >= 0.7).sum())
        self.right += int((predicted == classes).sum())

    def metrics(self, pictures: int) -> dict[str, float]:
        """Return the ceilings; nothing for a detector without regions."""
        if not self.has_regions:
            return {}
        objects = max(self.objects, 1)
        return {
            "proposals": self.regions / pictures,
            "proposal_recall_50": self.near50 / objects,
            "proposal_recall_70": self.near70 / objects,
            "true_box_accuracy": self.right / objects,
        }


@torch.inference_mode()
def _look_at_regions(detector: RegionDetector, inputs: tuple[Tensor, ...], true: Tensor) -> tuple[Tensor, Tensor]:
    """Return the proposals (n, 4) of one picture, and the class that each true box is given."""
    pictures, extents, _ = inputs
    boxes = true[None].to(pictures.device)
    predicted = detector.score(detector.features(pictures, boxes), extents, boxes).scores[0].argmax(-1).cpu()
    return _proposed_regions(detector, inputs), predicted


def _proposed_regions(detector: RegionDetector, inputs: tuple[Tensor, ...]) -> Tensor:
    """Return the proposals (n, 4) of one picture, without padding."""
    pictures, extents, external = inputs
    if detector.needs_proposals:
        proposed = external[0].cpu()
    else:
        proposed = detector.propose(detector.features(pictures, external), extents, external)[0].float().cpu()
    return proposed[(proposed[:, 2:] > proposed[:, :2]).all(1)]


def _inputs(detector: Detector, item: LabeledPicture, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return pictures, extents and proposals of a batch of one."""
    proposals = [propose(item.picture).boxes] if detector.needs_proposals else None
    batch = collate_pictures([item], proposals)
    return batch.pictures.to(device), batch.extents.to(device), batch.proposals.to(device)


def to_detections(found: Detection) -> Detections:
    """Return detections for the metrics."""
    boxes, scores, classes = (x.cpu() for x in found)
    return Detections(boxes.double().numpy(), classes.numpy(), scores.double().numpy())


def to_objects(item: LabeledPicture) -> Objects:
    """Return the objects of a picture for the metrics."""
    return Objects(item.boxes.double().numpy(), item.classes.numpy(), item.difficult.numpy())


def validation_score(detections: SplitDetections, classes: int) -> float:
    """Return 1 - AP50: lower is better."""
    found: Sequence[Detections] = detections.found
    return 1 - float(np.clip(coco_evaluate(found, detections.objects, classes).scores.ap50, 0, 1))
