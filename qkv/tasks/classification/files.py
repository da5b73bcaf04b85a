"""Labeled files: points from CSV; images from .npz, IDX and folders. Splits that are missing are held out."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from qkv.data import LabeledExamples, read_image_folder, read_images, read_npz, read_points
from qkv.data.files.images import is_image_array
from qkv.data.files.points import LAST
from qkv.errors import QkvError
from qkv.storage.atomic import list_names

TABLE_SUFFIXES = (".csv", ".tsv", ".txt")
MIN_CLASS_SIZE_TEST = 5
"""A class with fewer points has none in the test split."""
MIN_CLASS_SIZE_VALID = 9
"""A class with fewer points left after testing has none in the validation split."""
MIN_IMAGES = 10
"""A class with fewer images has none in the test or validation split."""
FOLDER_SPLITS = {"train": "train", "valid": "valid", "val": "valid", "test": "test"}
"""Subfolders of a folder of images that are splits, not classes."""


@dataclass(frozen=True)
class LabeledFiles:
    """Files with labeled examples."""

    train_file: str | None = None
    """CSV of points, .npz or IDX images, or a folder with a subfolder of images per class."""
    test_file: str | None = None
    """Data to evaluate on, in the format of train_file."""
    held_out: float = 0.1
    """Fraction of the training examples held out for validation, and the same again for testing."""

    def __post_init__(self) -> None:
        if not 0 < self.held_out <= 0.4:
            raise ValueError(f"held_out must be more than 0 and at most 0.4, got {self.held_out}")


@dataclass(frozen=True)
class PointOptions(LabeledFiles):
    """A CSV file of points."""

    label: str = LAST
    """Column of the class: a name of the header, or a number from 0; -1 is the last column."""


@dataclass(frozen=True)
class ImageOptions(LabeledFiles):
    """Images: .npz files, IDX files, or folders."""

    train_labels: str | None = None
    """IDX labels of the training file; default: the file next to it with the matching name."""
    test_labels: str | None = None
    """IDX labels of the test file."""
    size: int = 0
    """Side in pixels that images of a folder are resized to; 0: theirs if all are equal and at most 64, else 32."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.size <= 4096:
            raise ValueError(f"size must be from 0 to 4096, got {self.size}")


@dataclass(frozen=True)
class PointOrImageOptions(ImageOptions, PointOptions):
    """A file of points or images."""


class ClassData(NamedTuple):
    """Splits, the names of the classes, and a sentence about what was read."""

    splits: dict[str, LabeledExamples]
    classes: tuple[str, ...]
    note: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one training example."""
        return tuple(self.splits["train"].inputs.shape[1:])


def holds_images(path: str) -> bool:
    """Return whether a path is a folder or a file of images, and not a file of points."""
    return Path(path).is_dir() or is_image_array(Path(path))


def read_point_splits(given: PointOptions) -> ClassData:
    """Read a file of points; where every class is too small, validation uses the training points."""
    assert given.train_file is not None
    points = read_points(given.train_file, label=given.label)
    test = None if given.test_file is None else read_points(given.test_file, points.classes, label=given.label).examples
    shape = points.examples.inputs.shape[1:]
    if test is not None and test.inputs.shape[1:] != shape:
        raise QkvError(
            f"test points have {test.inputs.shape[1]} values, training points {shape[0]}", given.test_file or ""
        )
    splits = _hold_out_points(points.examples, given.held_out, test, given.train_file)
    return ClassData(splits, points.classes, f"points of {shape[0]} values in {len(points.classes)} classes")


def _hold_out_points(
    points: LabeledExamples, share: float, test: LabeledExamples | None, file: str
) -> dict[str, LabeledExamples]:
    train, held = points.hold_out(share, min_class_size=MIN_CLASS_SIZE_TEST) if test is None else (points, test)
    if not len(held):
        raise QkvError(
            f"every class has fewer than {MIN_CLASS_SIZE_TEST} points, so none can be held out for testing: "
            "give test data with --test-file FILE.csv (it may be the training file)",
            file,
        )
    rest, valid = train.hold_out(share, seed=1, min_class_size=MIN_CLASS_SIZE_VALID)
    return {"train": rest, "valid": valid if len(valid) else rest, "test": held}


def read_image_splits(given: ImageOptions) -> ClassData:
    """Read images; splits that are missing are held out of the training split."""
    assert given.train_file is not None
    path = Path(given.train_file)
    found = _read_image_folder_splits(path, given.size) if path.is_dir() else _read_image_file(path, given)
    splits, classes, shape = found.splits, found.classes, found.shape
    if len(splits["train"].labels.unique()) < 2:
        raise QkvError(
            f"all {len(splits['train'])} images are of class {classes[int(splits['train'].labels[0])]}; "
            "at least two classes are needed",
            path,
        )
    if given.test_file is not None:
        splits["test"] = read_test_images(given.test_file, classes, shape, given.test_labels)
    for seed, name in enumerate(("test", "valid")):
        if name not in splits:
            least = MIN_IMAGES - seed
            splits["train"], splits[name] = splits["train"].hold_out(given.held_out, seed=seed, min_class_size=least)
            if not len(splits[name]):
                raise QkvError(f"every class has fewer than {MIN_IMAGES} images, so none can be held out", path)
    for name, split in splits.items():
        if tuple(split.inputs.shape[1:]) != shape:
            raise QkvError(f"{name} images have shape {tuple(split.inputs.shape[1:])}, training images {shape}")
    return found._replace(splits=splits)


def _read_image_file(path: Path, given: ImageOptions) -> ClassData:
    if path.suffix.lower() in TABLE_SUFFIXES:
        raise QkvError(
            f"{path.name} is a table, but this task needs images (.npz, IDX or a folder of images); "
            f"the task classify takes a table: qkv train classify --train-file {path.name}",
            path.parent,
        )
    splits = read_npz(path) if path.suffix == ".npz" else {"train": read_images(path, given.train_labels)}
    if "train" not in splits:
        raise QkvError("the file has no train_images", path)
    classes = int(max(split.labels.max() for split in splits.values())) + 1
    return _describe_images(splits, tuple(map(str, range(classes))))


def _read_image_folder_splits(folder: Path, size: int) -> ClassData:
    """Read a folder of classes, or one with a subfolder train, and valid and test if there are any."""
    names = [name for name in list_names(folder) if (folder / name).is_dir() and not name.startswith(".")]
    if "train" not in names or not set(names) <= FOLDER_SPLITS.keys():
        found = read_image_folder(folder, size=size)
        return _describe_images({"train": found.examples}, found.classes, found.resized)
    train = read_image_folder(folder / "train", size=size)
    splits, resized = {"train": train.examples}, train.resized
    shape = tuple(train.examples.inputs.shape[1:])
    for name in names:
        if name != "train":
            splits[FOLDER_SPLITS[name]] = _read_known_classes(folder / name, train.classes, shape)
    return _describe_images(splits, train.classes, resized)


def _describe_images(splits: dict[str, LabeledExamples], classes: tuple[str, ...], resized: int = 0) -> ClassData:
    channels, height, width = splits["train"].inputs.shape[1:]
    count = f", {resized:,} of them resized (data.size)" if resized else ""
    color = "grayscale" if channels == 1 else "color" if channels == 3 else f"{channels}-channel"
    note = f"{color} images of {height} x {width} pixels{count} in {len(classes)} classes"
    return ClassData(splits, classes, note)


def _read_known_classes(folder: Path, classes: tuple[str, ...], shape: tuple[int, ...]) -> LabeledExamples:
    """Read a folder of images whose classes are among these."""
    found = read_image_folder(folder, shape=shape)
    for name in found.classes:
        if name not in classes:
            raise QkvError(f"class must be one of {', '.join(classes)}, got the subfolder {name!r}", folder)
    known = found.examples.labels.new_tensor([classes.index(name) for name in found.classes])
    return LabeledExamples(found.examples.inputs, known[found.examples.labels])


def read_test_images(
    path: str, classes: tuple[str, ...], shape: tuple[int, ...], labels: str | None = None
) -> LabeledExamples:
    """Read other images of these classes and this shape; `labels` are the labels of an IDX file."""
    if Path(path).is_dir():
        return _read_known_classes(Path(path), classes, shape)
    if not path.endswith(".npz"):
        return read_images(path, labels)
    splits = read_npz(path)
    if "test" not in splits:
        raise QkvError("the file has no test_images", Path(path))
    return splits["test"]
