"""The task `xor`: the four points that no line separates, or points from a CSV file."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from qkv.data import LabeledExamples, read_points
from qkv.data import xor as xor_points
from qkv.errors import QkvError
from qkv.tasks.base import Preset, register
from qkv.tasks.classification import ClassificationTask, Scale
from qkv.tasks.options import read_options

MIN_CLASS_SIZE_TEST = 5
"""Fewest points of a class to hold out at least one for testing."""
MIN_CLASS_SIZE_VALID = 9
"""Fewest remaining points of a class to hold out at least one for validation."""


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


@dataclass(frozen=True)
class PointOptions:
    """Source of the points."""

    train_file: str | None = None
    """CSV: values, then the class."""
    test_file: str | None = None
    """CSV file to evaluate on."""
    held_out: float = 0.1
    """Fraction of the training points held out for validation, and the same again for testing."""

    def __post_init__(self) -> None:
        if not 0 < self.held_out <= 0.4:
            raise ValueError(f"held_out must be more than 0 and at most 0.4, got {self.held_out}")


@register("xor")
class XorTask(ClassificationTask):
    """Classify points: XOR, or a CSV file with the class in the last column."""

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
        if given.train_file is None:
            if given.test_file is not None:
                raise QkvError("--test-file needs a training file, too: --train-file FILE.csv")
            points = xor_points()
            splits, scale = dict.fromkeys(("train", "valid", "test"), points.examples), Scale()
        else:
            points = read_points(given.train_file)
            test = None if given.test_file is None else read_points(given.test_file, points.classes).examples
            splits = _hold_out(points.examples, given.held_out, test, given.train_file)
            scale = Scale.of(splits["train"].inputs, columns=True)  # fit the scaler on the training split only
        shape = tuple(points.examples.inputs.shape[1:])
        if tuple(splits["test"].inputs.shape[1:]) != shape:
            raise QkvError(
                f"test points have {splits['test'].inputs.shape[1]} values, training points {shape[0]}",
                given.test_file or "",
            )
        return cls(splits, points.classes, shape, scale, asdict(given))

    def read_test(self, path: str) -> LabeledExamples:
        """Read another CSV file."""
        return read_points(path, self.classes).examples


def _hold_out(
    points: LabeledExamples, share: float, test: LabeledExamples | None, file: str
) -> dict[str, LabeledExamples]:
    """Split the points of a file; where every class is too small, validation uses the training points."""
    train, held = points.hold_out(share, min_class_size=MIN_CLASS_SIZE_TEST) if test is None else (points, test)
    if not len(held):
        raise QkvError(
            f"no class has {MIN_CLASS_SIZE_TEST} points, too few to hold any out for testing: name others with "
            "--test-file FILE.csv, or the same file again",
            file,
        )
    rest, valid = train.hold_out(share, seed=1, min_class_size=MIN_CLASS_SIZE_VALID)
    return {"train": rest, "valid": valid if len(valid) else rest, "test": held}
