"""The task `digits`: MNIST, or pictures of one's own."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from qkv.data import Labeled, mnist, read_npz, read_pictures
from qkv.data.corpora.mnist import CLASSES, SHAPE
from qkv.storage import QkvError
from qkv.tasks.base import ModelSizes, Preset, register
from qkv.tasks.classification import ClassificationTask, Scale
from qkv.tasks.options import read_options

HELD_OUT = 0.1
"""Share of each class that is kept apart where a file has no part for it."""
LEAST = 10
"""Pictures of a class from which on one is kept apart to test with, and one more to choose on."""


def quick() -> Preset:
    """A convolutional net with pooling on 5,000 digits, in half a minute."""
    return Preset("convolutional", {}, {"steps": 600, "batch_size": 64, "learning_rate": 2e-3, "validate_every": 100})


def stride() -> Preset:
    """The same with stride in place of pooling."""
    return Preset("convolutional", {"downsample": "stride"}, quick().train)


def network() -> Preset:
    """A network with a hidden layer of 128."""
    return Preset("network", {"hidden_dim": 128, "layers": 1}, quick().train)


def softmax() -> Preset:
    """Softmax regression."""
    return Preset("network", {"layers": 0}, quick().train)


def whole() -> Preset:
    """The convolutional net with pooling on all of MNIST, within five minutes on two cores."""
    return Preset(
        "convolutional",
        {},
        {"steps": 2000, "batch_size": 128, "learning_rate": 3e-3, "ema_decay": 0.998, "validate_every": 500},
        {"part": "whole"},
    )


@dataclass(frozen=True)
class PictureOptions:
    """Where the pictures come from."""

    part: str = "small"
    """Of MNIST: small (5,000 digits) or whole (70,000)."""
    train_file: str | None = None
    """.npz with train_images and train_labels, or IDX pictures, instead of MNIST."""
    train_labels: str | None = None
    """IDX labels of the training file; without, the file beside it that is named for them."""
    test_file: str | None = None
    """The same as train_file, to evaluate on."""
    test_labels: str | None = None
    """IDX labels of the test file."""


@register("digits")
class DigitsTask(ClassificationTask):
    """Read handwritten digits: MNIST, or pictures from .npz (MedMNIST) or IDX files."""

    presets: ClassVar[dict[str, Callable[[], Preset]]] = {
        "quick": quick,
        "stride": stride,
        "network": network,
        "softmax": softmax,
        "whole": whole,
    }

    @classmethod
    def load(cls, options: dict[str, Any]) -> "DigitsTask":
        """MNIST, unless a training file is given."""
        given = read_options(PictureOptions, options)
        parts = mnist(given.part) if given.train_file is None else _own(given)
        if given.test_file is not None:
            parts["test"] = _test(given.test_file, given.test_labels)
        train = parts["train"]
        classes = int(max(part.labels.max() for part in parts.values())) + 1
        shape, scale = tuple(train.inputs.shape[1:]), Scale.of(train.inputs)
        for name, part in parts.items():
            if tuple(part.inputs.shape[1:]) != shape:
                raise QkvError(f"{name} pictures have shape {tuple(part.inputs.shape[1:])}, training ones {shape}")
        return cls(parts, tuple(map(str, range(classes))), shape, scale, asdict(given))

    @classmethod
    def model_sizes(cls, options: dict[str, Any]) -> ModelSizes | None:
        """MNIST's, which is known without reading it."""
        given = read_options(PictureOptions, options)
        if (given.train_file, given.test_file) != (None, None):
            return None
        note = f"{CLASSES} classes of pictures of {' x '.join(map(str, SHAPE))}, as MNIST has; it was not read"
        return ModelSizes((*SHAPE, CLASSES), SHAPE, note)

    def read_test(self, path: str) -> Labeled:
        """The test part of an .npz file, or an IDX file with its labels beside it."""
        return _test(path, None)


def _own(given: PictureOptions) -> dict[str, Labeled]:
    """The parts of a training file; those that are nowhere are held out of it."""
    assert given.train_file is not None
    path = Path(given.train_file)
    parts = read_npz(path) if path.suffix == ".npz" else {"train": read_pictures(path, given.train_labels)}
    if "train" not in parts:
        raise QkvError("there are no train_images in it", path)
    train = parts["train"]
    if len(train.labels.unique()) < 2:
        raise QkvError(
            f"all {len(train)} pictures are of class {int(train.labels[0])}; at least two classes are needed", path
        )
    for number, part in enumerate(("test", "valid")):
        if part not in parts and (part == "valid" or given.test_file is None):
            parts["train"], parts[part] = parts["train"].hold_out(HELD_OUT, seed=number, least=LEAST - number)
            if not len(parts[part]):
                raise QkvError(f"there are fewer than {LEAST} pictures a class, too few to hold any out", path)
    return parts


def _test(path: str, labels: str | None) -> Labeled:
    if not path.endswith(".npz"):
        return read_pictures(path, labels)
    parts = read_npz(path)
    if "test" not in parts:
        raise QkvError("there are no test_images in it", Path(path))
    return parts["test"]
