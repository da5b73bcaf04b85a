"""torchvision's FasterRCNN on our EfficientNet-Lite0, trained for a fixed time: the peer of benchmarks.detection_cards.

Backbone, its weights and its frozen normalization are the same module as ours; everything after it is torchvision's.
"""

import math
import random
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from qkv.models.detectors import Detection
from qkv.models.detectors.lite0 import Lite0Backbone
from qkv.tasks.detection.pictures import FilePictures, LabeledPicture

ANCHORS = (24, 43, 76, 135, 240)
RATIOS = (0.5, 1.0, 2.0)
POOL = 7
WARMUP_STEPS = 50
WEIGHT_DECAY = 0.01
BRIGHTNESS = 0.2
MAX_GRAD_NORM = 5.0


def make_peer(classes: int, size: int, *, pretrained: bool) -> nn.Module:
    """Return torchvision's FasterRCNN; pictures keep their size, and class 0 is background."""
    detection: Any = import_module("torchvision.models.detection")  # not a dependency
    anchors: Any = import_module("torchvision.models.detection.rpn")
    ops: Any = import_module("torchvision.ops")

    backbone: Any = Lite0Backbone(pretrained=pretrained)
    backbone.load_pretrained()
    backbone.out_channels = backbone.channels
    model: nn.Module = detection.FasterRCNN(
        backbone,
        num_classes=classes + 1,
        min_size=size,
        max_size=size,
        image_mean=[127 / 255] * 3,
        image_std=[128 / 255] * 3,
        rpn_anchor_generator=anchors.AnchorGenerator((ANCHORS,), (RATIOS,)),
        box_roi_pool=ops.MultiScaleRoIAlign(["0"], POOL, 2),
    )
    return model


def train_torchvision(
    pictures: FilePictures, classes: int, *, seconds: float, device: str, pretrained: bool, seed: int,
    batch: int, rate: float,
) -> tuple[nn.Module, dict[str, Any]]:  # fmt: skip
    """Train with AdamW and a cosine over the time; return the model and what it took."""
    torch.manual_seed(seed)
    order = random.Random(seed)
    model = make_peer(classes, pictures.size, pretrained=pretrained).to(device).train()
    examples = [_to_example(pictures[index], device) for index in range(len(pictures))]
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], lr=rate, weight_decay=WEIGHT_DECAY
    )
    queue: list[int] = []
    step, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1, (step + 1) / WARMUP_STEPS) * (1 + math.cos(math.pi * passed / seconds)) / 2
        while len(queue) < batch:
            queue += order.sample(range(len(examples)), len(examples))
        chosen, queue = [_augment(*examples[index], order) for index in queue[:batch]], queue[batch:]
        with torch.autocast(device.partition(":")[0], torch.bfloat16, enabled=device != "cpu"):
            losses = model([picture for picture, _ in chosen], [target for _, target in chosen])
        optimizer.zero_grad(set_to_none=True)
        sum(losses.values()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        step += 1
        if device != "cpu":
            torch.cuda.synchronize()
    settings = {"anchors": ANCHORS, "ratios": RATIOS, "batch_size": batch, "learning_rate": rate}
    taken = {"steps": step, "seconds": time.perf_counter() - start, "passes": step * batch / len(pictures)}
    return model.eval(), {"settings": settings, **taken}


def detect_with_peer(model: nn.Module, device: str) -> Callable[[LabeledPicture], Detection]:
    """Return a function from a picture to its detections."""

    @torch.inference_mode()
    def detect(item: LabeledPicture) -> Detection:
        (found,) = model([item.picture.to(device).float() / 255])
        return Detection(found["boxes"].cpu(), found["scores"].cpu(), found["labels"].cpu() - 1)

    return detect


def _to_example(item: LabeledPicture, device: str) -> tuple[Tensor, dict[str, Tensor]]:
    target = {"boxes": item.boxes.to(device), "labels": item.classes.to(device) + 1}
    return item.picture.to(device).float() / 255, target


def _augment(picture: Tensor, target: dict[str, Tensor], order: random.Random) -> tuple[Tensor, dict[str, Tensor]]:
    """Flip half of the pictures; scale brightness."""
    if order.random() < 0.5:
        picture, boxes = picture.flip(-1), target["boxes"]
        width = picture.shape[-1]
        target = {
            **target,
            "boxes": torch.stack([width - boxes[:, 2], boxes[:, 1], width - boxes[:, 0], boxes[:, 3]], 1),
        }
    return (picture * order.uniform(1 - BRIGHTNESS, 1 + BRIGHTNESS)).clamp(0, 1), target
