"""Presets of the task `detect`: the same backbone, pictures and passes; what differs is what their names say."""

from qkv.tasks.base import Preset

_TRAIN = {"batch_size": 8, "warmup": 50, "validate_every": 500, "max_grad_norm": 5.0}


def faster() -> Preset:
    """Return Faster R-CNN on generated scenes: two minutes on two cores."""
    return Preset("faster", {}, {**_TRAIN, "steps": 1500, "learning_rate": 1e-3})


def fast() -> Preset:
    """Return Fast R-CNN with selective search."""
    return Preset("fast", {}, {**_TRAIN, "steps": 1500, "learning_rate": 1e-3})


def rcnn() -> Preset:
    """Return R-CNN: crops, SVMs, ridge regression; half of the steps train the network."""
    return Preset("rcnn", {}, {**_TRAIN, "steps": 1500, "learning_rate": 1e-3})


def photos() -> Preset:
    """Return Faster R-CNN on EfficientNet-Lite0, trained on ImageNet, for your own photographs."""
    return Preset(
        "faster",
        {"backbone": "lite0", "pool": 7, "hidden_dim": 256, "samples": 64},
        {**_TRAIN, "steps": 600, "learning_rate": 3e-4, "validate_every": 100},
        {"flip": True, "zoom": 1.25, "color": 0.2},
    )
