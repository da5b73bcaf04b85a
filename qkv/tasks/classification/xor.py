"""The task `xor`: the four points that no line separates, or points from a CSV file."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, ClassVar

from qkv.data import xor as xor_points
from qkv.errors import QkvError
from qkv.tasks.base import Preset, register
from qkv.tasks.classification.files import PointOptions, read_point_splits
from qkv.tasks.classification.task import ClassificationTask, Scale
from qkv.tasks.options import read_options


def network() -> Preset:
    """Return two hidden units: the smallest network that solves XOR, though not from every seed."""
    return Preset(
        "network",
        {"hidden_dim": 2, "layers": 1, "activation": "tanh"},
        {"steps": 500, "learning_rate": 0.1, "warmup": 0, "weight_decay": 0.0, "validate_every": 50, "seed": 1},
    )


def logistic() -> Preset:
    """Return logistic regression, which cannot solve XOR."""
    return Preset("network", {"layers": 0}, network().train)


def perceptron() -> Preset:
    """Return a perceptron, which cannot solve XOR either."""
    return Preset("perceptron", {"spread": 1.0}, network().train)


def wide() -> Preset:
    """Return two hidden layers of 32, for files of points."""
    return Preset(
        "network",
        {"hidden_dim": 32, "layers": 2},
        {"steps": 1000, "batch_size": 64, "learning_rate": 0.01, "warmup": 10, "validate_every": 100},
    )


@register("xor")
class XorTask(ClassificationTask):
    """Classify points: XOR, or a CSV file with the class in the last column."""

    data_options = PointOptions
    presets: ClassVar[dict[str, Callable[[], Preset]]] = {
        "network": network,
        "logistic": logistic,
        "perceptron": perceptron,
        "wide": wide,
    }

    @classmethod
    def load(cls, options: dict[str, Any]) -> "XorTask":
        """Return the four corners, unless a training file is given."""
        given = read_options(PointOptions, options)
        if given.train_file is not None:
            data = read_point_splits(given)
            # fit the scaler on the training split only
            scale = Scale.of(data.splits["train"].inputs, columns=True)
            return cls(data.splits, data.classes, data.shape, scale, asdict(given))
        if given.test_file is not None:
            raise QkvError("--test-file needs a training file, too: --train-file FILE.csv")
        points = xor_points()
        splits = dict.fromkeys(("train", "valid", "test"), points.examples)
        return cls(splits, points.classes, tuple(points.examples.inputs.shape[1:]), Scale(), asdict(given))
