"""The task `digits`: MNIST, or your own images."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from qkv.data import LabeledExamples, mnist, read_images, read_npz
from qkv.data.corpora.mnist import CLASSES, SHAPE
from qkv.errors import QkvError
from qkv.tasks.base import ModelSizes, Preset, register
from qkv.tasks.classification import ClassificationTask, Scale
from qkv.tasks.options import read_options

HELD_OUT = 0.1
"""Fraction of each class to hold out where a file has no such split."""
MIN_CLASS_SIZE = 10
"""Fewest images of a class to hold out one for testing and one for validation."""


def quick() -> Preset:
    """Return a convolutional network with pooling on 5,000 digits: half a minute."""
    return Preset("convolutional", {}, {"steps": 600, "batch_size": 64, "learning_rate": 2e-3, "validate_every": 100})


def stride() -> Preset:
    """Return the same network with strides instead of pooling."""
    return Preset("convolutional", {"downsample": "stride"}, quick().train)


def network() -> Preset:
    """Return an MLP with one hidden layer of 128."""
    return Preset("network", {"hidden_dim": 128, "layers": 1}, quick().train)


def softmax() -> Preset:
    """Return softmax regression."""
    return Preset("network", {"layers": 0}, quick().train)


def whole() -> Preset:
    """Return the convolutional network with pooling on all of MNIST: five minutes on two cores."""
    return Preset(
        "convolutional",
        {},
        {"steps": 2000, "batch_size": 128, "learning_rate": 3e-3, "ema_decay": 0.998, "validate_every": 500},
        {"part": "whole"},
    )


@dataclass(frozen=True)
class ImageOptions:
    """Source of the images."""

    part: str = "small"
    """Part of MNIST: small (5,000 digits) or whole (70,000)."""
    train_file: str | None = None
    """.npz with train_images and train_labels, or IDX images, instead of MNIST."""
    train_labels: str | None = None
    """IDX labels of the training file; default: the file next to it with the matching name."""
    test_file: str | None = None
    """File to evaluate on, in the format of train_file."""
    test_labels: str | None = None
    """IDX labels of the test file."""


@register("digits")
class DigitsTask(ClassificationTask):
    """Classify handwritten digits: MNIST, or images from .npz (MedMNIST) or IDX files."""

    presets: ClassVar[dict[str, Callable[[], Preset]]] = {
        "quick": quick,
        "stride": stride,
        "network": network,
        "softmax": softmax,
        "whole": whole,
    }

    @classmethod
    def load(cls, options: dict[str, Any]) -> "DigitsTask":
        """Read MNIST, unless a training file is given."""
        given = read_options(ImageOptions, options)
        splits = mnist(given.part) if given.train_file is None else _read_splits(given)
        if given.test_file is not None:
            splits["test"] = _read_test(given.test_file, given.test_labels)
        train = splits["train"]
        classes = int(max(split.labels.max() for split in splits.values())) + 1
        shape, scale = tuple(train.inputs.shape[1:]), Scale.of(train.inputs)
        for name, split in splits.items():
            if tuple(split.inputs.shape[1:]) != shape:
                raise QkvError(f"{name} images have shape {tuple(split.inputs.shape[1:])}, training images {shape}")
        return cls(splits, tuple(map(str, range(classes))), shape, scale, asdict(given))

    @classmethod
    def model_sizes(cls, options: dict[str, Any]) -> ModelSizes | None:
        """Return the sizes of MNIST, which are known without reading it."""
        given = read_options(ImageOptions, options)
        if (given.train_file, given.test_file) != (None, None):
            return None
        note = f"{CLASSES} classes of images of {' x '.join(map(str, SHAPE))}, as in MNIST; it was not read"
        return ModelSizes((*SHAPE, CLASSES), SHAPE, note)

    def read_test(self, path: str) -> LabeledExamples:
        """Read the test split of an .npz file, or an IDX file with its labels next to it."""
        return _read_test(path, None)


def _read_splits(given: ImageOptions) -> dict[str, LabeledExamples]:
    """Read a training file; splits that it lacks are held out of its training split."""
    assert given.train_file is not None
    path = Path(given.train_file)
    splits = read_npz(path) if path.suffix == ".npz" else {"train": read_images(path, given.train_labels)}
    if "train" not in splits:
        raise QkvError("the file has no train_images", path)
    train = splits["train"]
    if len(train.labels.unique()) < 2:
        raise QkvError(
            f"all {len(train)} images are of class {int(train.labels[0])}; at least two classes are needed", path
        )
    for seed, name in enumerate(("test", "valid")):
        if name not in splits and (name == "valid" or given.test_file is None):
            least = MIN_CLASS_SIZE - seed
            splits["train"], splits[name] = splits["train"].hold_out(HELD_OUT, seed=seed, min_class_size=least)
            if not len(splits[name]):
                raise QkvError(f"fewer than {MIN_CLASS_SIZE} images per class are too few to hold any out", path)
    return splits


def _read_test(path: str, labels: str | None) -> LabeledExamples:
    if not path.endswith(".npz"):
        return read_images(path, labels)
    splits = read_npz(path)
    if "test" not in splits:
        raise QkvError("the file has no test_images", Path(path))
    return splits["test"]
