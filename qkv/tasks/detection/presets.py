"""Presets of the task `detect`: the same backbone, pictures and passes; what differs is what their names say."""

from qkv.tasks.base import Preset

_TRAIN = {"batch_size": 8, "warmup": 50, "validate_every": 500, "max_grad_norm": 5.0, "learning_rate": 4e-3}
_SMALL = {**_TRAIN, "steps": 5500, "batch_size": 4, "warmup": 100, "validate_every": 2750}
_SCENES = {"recolor": True, "zoom": 1.3, "train_scenes": 3000, "part": "whole"}
_MODEL = {"backbone": "contrast", "hidden_dim": 256}  # the digits have any color


def faster() -> Preset:
    """Return Faster R-CNN on generated scenes: six minutes on two cores."""
    return Preset("faster", {**_MODEL, "samples": 64, "proposals": 64}, {**_SMALL, "ema_decay": 0.999}, _SCENES)


def fast() -> Preset:
    """Return Fast R-CNN: proposals by selective search, classes and boxes by the network."""
    return Preset(
        "fast",
        {**_MODEL, "samples": 64, "pooling": "align"},
        {**_SMALL, "ema_decay": 0.999},
        _SCENES,
    )


def rcnn() -> Preset:
    """Return R-CNN: proposals by selective search, classes by SVMs, boxes by ridge regression."""
    return Preset("rcnn", _MODEL, _SMALL, _SCENES)


def detr() -> Preset:
    """Return DETR on new scenes of 128 x 128 pixels at every step, for a GPU."""
    return Preset(
        "detr",
        {"backbone": "wide-contrast", "dim": 192, "heads": 6, "layers": 3},
        {**_TRAIN, "batch_size": 64, "steps": 4000, "learning_rate": 1e-3, "ema_decay": 0.999},
        {"size": 128, "train_scenes": 0, "recolor": True, "part": "whole"},
    )


def large() -> Preset:
    """Return Faster R-CNN with a wide backbone on new scenes of 128 x 128 pixels at every step, for a GPU."""
    return Preset(
        "faster",
        {"backbone": "wide", "samples": 64, "hidden_dim": 256},
        {**_TRAIN, "batch_size": 32, "steps": 5000, "learning_rate": 1e-3, "ema_decay": 0.999},
        {"size": 128, "train_scenes": 0, "recolor": True, "part": "whole"},
    )


def photos() -> Preset:
    """Return Faster R-CNN on EfficientNet-Lite0, trained on ImageNet, for your own photographs."""
    return Preset(
        "faster",
        {"backbone": "lite0", "pool": 7, "hidden_dim": 256, "samples": 64},
        {**_TRAIN, "batch_size": 16, "steps": 1000, "learning_rate": 3e-4, "validate_every": 200, "ema_decay": 0.998},
        {"flip": True, "zoom": 1.25, "color": 0.2},
    )
