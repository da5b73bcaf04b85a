"""The task `xor`: the four points that no line separates, or anybody's points from a CSV file."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from qkv.data import Labeled, read_points
from qkv.data import xor as xor_points
from qkv.storage import QkvError
from qkv.tasks.base import Preset, register
from qkv.tasks.classification import ClassificationTask, Scale
from qkv.tasks.options import read_options

LEAST_TESTED = 5
"""Points of a class from which on one at least is kept apart to test with."""
LEAST_CHOSEN = 9
"""Points of a class that are left then, from which on one more at least is kept apart to choose on."""


def network() -> Preset:
    """Two inputs, two hidden units, one output: the smallest network that can, though not from every seed."""
    return Preset(
        "network",
        {"hidden_dim": 2, "layers": 1, "activation": "tanh"},
        {"steps": 500, "learning_rate": 0.1, "warmup": 0, "weight_decay": 0.0, "validate_every": 50, "seed": 1},
    )


def logistic() -> Preset:
    """Logistic regression, which cannot."""
    return Preset("network", {"layers": 0}, network().train)


def perceptron() -> Preset:
    """A perceptron, which cannot, either."""
    return Preset("perceptron", {"spread": 1.0}, network().train)


def wide() -> Preset:
    """Two hidden layers of 32, for files of points."""
    return Preset(
        "network",
        {"hidden_dim": 32, "layers": 2},
        {"steps": 1000, "batch_size": 64, "learning_rate": 0.01, "warmup": 10, "validate_every": 100},
    )


@dataclass(frozen=True)
class PointOptions:
    """Where the points come from."""

    train_file: str | None = None
    """CSV: numbers, then the class."""
    test_file: str | None = None
    """The same, to evaluate on."""
    held_out: float = 0.1
    """Share of the training points that is kept apart to choose on, and as much again to test with."""

    def __post_init__(self) -> None:
        if not 0 < self.held_out <= 0.4:
            raise ValueError(f"held_out must be more than 0 and at most 0.4, got {self.held_out}")


@register("xor")
class XorTask(ClassificationTask):
    """Tell points apart: XOR, or a CSV file of numbers with a class in the last column."""

    presets: ClassVar[dict[str, Callable[[], Preset]]] = {
        "network": network,
        "logistic": logistic,
        "perceptron": perceptron,
        "wide": wide,
    }

    @classmethod
    def load(cls, options: dict[str, Any]) -> "XorTask":
        """The four corners, unless a training file is given."""
        given = read_options(PointOptions, options)
        if given.train_file is None:
            if given.test_file is not None:
                raise QkvError("a test file needs a training file beside it: --train-file FILE.csv")
            points = xor_points()
            parts, scale = dict.fromkeys(("train", "valid", "test"), points.examples), Scale()
        else:
            points = read_points(given.train_file)
            test = None if given.test_file is None else read_points(given.test_file, points.classes).examples
            parts = _parts(points.examples, given.held_out, test, given.train_file)
            scale = Scale.of(parts["train"].inputs, columns=True)  # what is judged on has no say in it
        shape = tuple(points.examples.inputs.shape[1:])
        if tuple(parts["test"].inputs.shape[1:]) != shape:
            raise QkvError(
                f"points have {parts['test'].inputs.shape[1]} numbers, training ones {shape[0]}", given.test_file or ""
            )
        return cls(parts, points.classes, shape, scale, asdict(given))

    def read_test(self, path: str) -> Labeled:
        """Another CSV file."""
        return read_points(path, self.classes).examples


def _parts(points: Labeled, share: float, test: Labeled | None, file: str) -> dict[str, Labeled]:
    """Three parts of a file; where no class has any to spare for it, the training points are chosen on too."""
    train, held = points.hold_out(share, least=LEAST_TESTED) if test is None else (points, test)
    if not len(held):
        raise QkvError(
            f"no class has {LEAST_TESTED} points, too few to hold any out to test with: --test-file FILE.csv names "
            "others, or the same file again",
            file,
        )
    rest, valid = train.hold_out(share, seed=1, least=LEAST_CHOSEN)
    return {"train": rest, "valid": valid if len(valid) else rest, "test": held}
