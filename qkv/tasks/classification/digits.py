"""The task `digits`: MNIST, or your own images."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from qkv.data import mnist
from qkv.data.corpora.mnist import CLASSES, SHAPE
from qkv.tasks.base import ModelSizes, Preset, register
from qkv.tasks.classification.files import ClassData, ImageOptions, read_image_splits, read_test_images
from qkv.tasks.classification.task import ClassificationTask, Scale
from qkv.tasks.options import read_options


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
class DigitsOptions(ImageOptions):
    """MNIST, or other images."""

    part: str = "small"
    """Part of MNIST: small (5,000 digits) or whole (70,000)."""


@register("digits")
class DigitsTask(ClassificationTask):
    """Classify handwritten digits: MNIST, or images from .npz (MedMNIST) or IDX files."""

    data_options = DigitsOptions
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
        given = read_options(DigitsOptions, options)
        data = _mnist(given) if given.train_file is None else read_image_splits(given)
        scale = Scale.of(data.splits["train"].inputs)
        notes = () if given.train_file is None else (data.note,)
        return cls(data.splits, data.classes, data.shape, scale, asdict(given), notes)

    @classmethod
    def model_sizes(cls, options: dict[str, Any]) -> ModelSizes | None:
        """Return the sizes of MNIST, which are known without reading it."""
        given = read_options(DigitsOptions, options)
        if (given.train_file, given.test_file) != (None, None):
            return None
        note = f"{CLASSES} classes of images of {' x '.join(map(str, SHAPE))}, as in MNIST; it was not read"
        return ModelSizes((*SHAPE, CLASSES), SHAPE, note=note)


def _mnist(given: DigitsOptions) -> ClassData:
    """Load MNIST, with the test split of a file if one is given."""
    data = ClassData(mnist(given.part), tuple(map(str, range(CLASSES))))
    if given.test_file is not None:
        data.splits["test"] = read_test_images(given.test_file, data.classes, SHAPE, given.test_labels)
    return data
