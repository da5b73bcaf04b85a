"""Options and splits of the task `detect`: generated scenes, or folders of pictures with boxes."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from qkv.data import mnist
from qkv.data.boxes import BoxedImage, BoxFolder, read_boxes
from qkv.data.corpora.mnist import CLASSES
from qkv.data.corpora.scenes import Scenes
from qkv.errors import QkvError, nearest_name
from qkv.random import derive_seed, uniforms
from qkv.tasks.detection.augment import Augmentation
from qkv.tasks.detection.pictures import FilePictures, PictureSet, ScenePictures

SCENE_SIZE, PHOTO_SIZE = 96, 320
SCENE_CLASSES = tuple(map(str, range(CLASSES)))
LISTED_PROBLEMS = 5
SPLIT_FOLDERS = {"train": "train", "valid": "valid", "val": "valid", "test": "test"}


@dataclass(frozen=True)
class DetectOptions(Augmentation):
    """Pictures with boxes: generated scenes, or your own."""

    train_file: str | None = None
    """COCO JSON file, or a folder of pictures with Pascal VOC, COCO or YOLO boxes; its subfolders train, valid and test
    are splits (default: generated scenes)."""
    test_file: str | None = None
    """Pictures to evaluate on, in any of these formats."""
    held_out: float = 0.1
    """Fraction of the training pictures held out for validation, and the same again for testing."""
    strict: bool = False
    """Whether a bad box or picture stops the run; otherwise it is left out and listed."""
    size: int = 0
    """Longer side of the pictures in pixels; 0: 96 for scenes, 320 for files."""
    train_scenes: int = 1000
    """Generated scenes to train on; 0: a new scene at every position of every batch."""
    valid_scenes: int = 100
    """Generated scenes to validate with."""
    test_scenes: int = 300
    """Generated scenes to evaluate on."""
    part: str = "small"
    """Part of MNIST in the scenes: small (5,000 digits) or whole (70,000)."""
    scene_seed: int = 0
    """Seed of the scenes."""
    proposals: int = 300
    """Most external proposals of a picture that are trained on."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.held_out <= 0.4:
            raise ValueError(f"held_out must be more than 0 and at most 0.4, got {self.held_out}")
        if self.size and not 32 <= self.size <= 4096:
            raise ValueError(f"size must be 0, or from 32 to 4096, got {self.size}")
        for name, lowest in (("train_scenes", 0), ("valid_scenes", 1), ("test_scenes", 1), ("proposals", 1)):
            if getattr(self, name) < lowest:
                raise ValueError(f"{name} must be at least {lowest}, got {getattr(self, name)}")

    @property
    def picture_size(self) -> int:
        """Longer side in pixels."""
        return self.size or (SCENE_SIZE if self.train_file is None else PHOTO_SIZE)


class PictureSplits(NamedTuple):
    """Pictures by split, the class names, and sentences about what was read."""

    splits: dict[str, PictureSet]
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()


def make_scenes(options: DetectOptions) -> PictureSplits:
    """Return generated scenes."""
    digits, scenes = mnist(options.part), Scenes(options.picture_size)
    counts = {"train": options.train_scenes, "valid": options.valid_scenes, "test": options.test_scenes}
    splits: dict[str, PictureSet] = {
        split: ScenePictures(scenes, digits[split], options.scene_seed, split, count or 500)
        for split, count in counts.items()
    }
    return PictureSplits(splits, SCENE_CLASSES)


def read_pictures(options: DetectOptions) -> PictureSplits:
    """Read the folders; splits that are missing are held out of the training pictures."""
    assert options.train_file is not None
    folders = _split_folders(Path(options.train_file))
    if options.test_file is not None:
        folders["test"] = Path(options.test_file)
    read = {split: read_boxes(path, strict=options.strict) for split, path in folders.items()}
    classes = read["train"].classes
    images = {split: require_classes(found, classes, folders[split]) for split, found in read.items()}
    for split in ("test", "valid"):
        if split not in images:
            images["train"], images[split] = _hold_out(images["train"], options.held_out, split, folders["train"])
    splits: dict[str, PictureSet] = {
        split: FilePictures(found, classes, options.picture_size) for split, found in images.items()
    }
    return PictureSplits(splits, classes, tuple(_notes(read)))


def read_test_pictures(path: str, classes: tuple[str, ...], size: int, *, strict: bool = False) -> FilePictures:
    """Read other pictures with objects of the same classes to evaluate on."""
    found = read_boxes(path, strict=strict)
    return FilePictures(require_classes(found, classes, Path(path)), classes, size)


def require_classes(found: BoxFolder, classes: tuple[str, ...], path: Path) -> tuple[BoxedImage, ...]:
    """Return the images; raise for an object of a class that is not trained."""
    for image in found.images:
        for box in image.objects:
            if box.label not in classes:
                raise QkvError(
                    f"{image.path.name} has an object of class {box.label!r}, but the training pictures have "
                    f"{', '.join(classes)}",
                    path,
                    nearest_name(box.label, classes),
                )
    return found.images


def _split_folders(path: Path) -> dict[str, Path]:
    """Return the folder of each split: the subfolders with these names, or the folder itself for training."""
    if not path.is_dir():
        return {"train": path}
    found = {split: path / name for name, split in SPLIT_FOLDERS.items() if (path / name).is_dir()}
    return found if "train" in found else {"train": path}


def _hold_out(
    images: tuple[BoxedImage, ...], share: float, split: str, path: Path
) -> tuple[tuple[BoxedImage, ...], tuple[BoxedImage, ...]]:
    """Split off a share of the pictures by a hash of their position in the sorted list."""
    count = max(1, round(share * len(images)))
    if len(images) - count < 1:
        raise QkvError(f"{path.name} has {len(images)} pictures, too few to hold some out for {split}", path.parent)
    order = uniforms(derive_seed(0, f"held-out pictures {split}"), torch.arange(len(images))).argsort().tolist()
    held = set(order[:count])
    kept = tuple(image for index, image in enumerate(images) if index not in held)
    return kept, tuple(images[index] for index in sorted(held))


def _notes(read: dict[str, BoxFolder]) -> list[str]:
    notes = []
    for split, found in read.items():
        objects = sum(len(image.objects) for image in found.images)
        notes.append(
            f"{split}: {len(found.images):,} pictures with {objects:,} objects of {len(found.classes)} classes"
        )
        for problem in found.problems[:LISTED_PROBLEMS]:
            notes.append(f"left out: {problem}")
        if len(found.problems) > LISTED_PROBLEMS:
            notes.append(f"{split} has {len(found.problems) - LISTED_PROBLEMS:,} more problems like these")
    return notes
