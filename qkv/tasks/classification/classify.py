"""The task `classify`: points or images from your own files."""

from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any, ClassVar

from qkv.errors import QkvError
from qkv.tasks.base import Preset, register
from qkv.tasks.classification.files import (
    PointOrImageOptions,
    holds_images,
    read_image_splits,
    read_point_splits,
)
from qkv.tasks.classification.task import ClassificationTask, Scale
from qkv.tasks.options import read_options


def points() -> Preset:
    """Return two hidden layers of 32: seconds."""
    return Preset(
        "network",
        {"hidden_dim": 32, "layers": 2},
        {"steps": 1000, "batch_size": 64, "learning_rate": 0.01, "warmup": 10, "validate_every": 100},
    )


def images() -> Preset:
    """Return a convolutional network with pooling: half a minute."""
    return Preset("convolutional", {}, {"steps": 600, "batch_size": 64, "learning_rate": 2e-3, "validate_every": 100})


def linear() -> Preset:
    """Return logistic or softmax regression, of points or images."""
    return Preset("network", {"layers": 0}, points().train)


@register("classify")
class ClassifyTask(ClassificationTask):
    """Classify points (CSV) or images (folder, .npz, IDX) of your own; the data decide which."""

    data_options = PointOrImageOptions
    presets: ClassVar[dict[str, Callable[[], Preset]]] = {"points": points, "images": images, "linear": linear}

    @classmethod
    def default_preset(cls, options: dict[str, Any]) -> str:
        """Return `images` for a folder or file of images, else `points`."""
        path = options.get("train_file")
        return "images" if path is not None and holds_images(str(path)) else "points"

    @classmethod
    def load(cls, options: dict[str, Any]) -> "ClassifyTask":
        """Read the training file."""
        given = read_options(PointOrImageOptions, options)
        if given.train_file is None:
            raise QkvError(
                "the task classify needs data to train on: --train-file points.csv, images.npz or a folder of images"
            )
        are_images = holds_images(given.train_file)
        _require_used_options(given, are_images)
        data = read_image_splits(given) if are_images else read_point_splits(given)
        # fit the scaler on the training split only
        scale = Scale.of(data.splits["train"].inputs, columns=not are_images)
        return cls(data.splits, data.classes, data.shape, scale, asdict(given), (data.note,))


def _require_used_options(given: PointOrImageOptions, are_images: bool) -> None:
    """Raise for an option that has no effect on this kind of data."""
    unused, kind = (("label",), "images") if are_images else (("train_labels", "test_labels", "size"), "points")
    for field in fields(given):
        if field.name in unused and getattr(given, field.name) != field.default:
            raise ValueError(f"data.{field.name} has no effect on {kind}, which {given.train_file} holds; leave it out")
