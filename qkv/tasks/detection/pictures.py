"""Pictures with labeled boxes to train on: files of a folder, or generated scenes. Each has a fixed longer side."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float32, Int64, UInt8
from torch import Tensor
from torch.nn import functional

from qkv.data import LabeledExamples
from qkv.data.boxes import BoxedImage
from qkv.data.corpora.scenes import Scenes
from qkv.data.files.image_files import read_image
from qkv.inference.detect import MULTIPLE, PADDING, fitted_size
from qkv.models.detectors import DetectionBatch

MAX_CACHED_BYTES = 2**31
"""Decoded pictures that a split keeps in memory; the rest is decoded again when it is used."""
SCENES_PER_CALL = 32


class LabeledPicture(NamedTuple):
    """A picture and its objects, in pixels of the resized picture."""

    picture: UInt8[Tensor, "3 height width"]
    boxes: Float32[Tensor, "objects 4"]
    classes: Int64[Tensor, " objects"]
    difficult: Bool[Tensor, " objects"]


class PictureSet(ABC):
    """Pictures by index; decoded ones are kept up to MAX_CACHED_BYTES."""

    def __init__(self) -> None:
        self._kept: dict[int, LabeledPicture] = {}
        self._bytes = 0

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of pictures."""

    @abstractmethod
    def name(self, index: int) -> str:
        """Return the file name, or what stands for it."""

    @abstractmethod
    def box_sizes(self) -> Float32[Tensor, "boxes 2"]:
        """Return the (width, height) of all objects that count."""

    @abstractmethod
    def _read(self, index: int) -> dict[int, LabeledPicture]:
        """Return this picture, and others that come with it."""

    def __getitem__(self, index: int) -> LabeledPicture:
        if index not in self._kept:
            found = self._read(index)
            if self._bytes > MAX_CACHED_BYTES:
                return found[index]
            self._kept |= found
            self._bytes += sum(item.picture.numel() for item in found.values())
        return self._kept[index]


class FilePictures(PictureSet):
    """Image files, resized so that the longer side has `size` pixels."""

    def __init__(self, images: Sequence[BoxedImage], classes: Sequence[str], size: int):
        super().__init__()
        self.images, self.size = tuple(images), size
        self.label = {name: index for index, name in enumerate(classes)}

    def __len__(self) -> int:
        return len(self.images)

    def name(self, index: int) -> str:
        """Return the path of the file."""
        return str(self.images[index].path)

    def box_sizes(self) -> Float32[Tensor, "boxes 2"]:
        """Return the sizes of the boxes of all files."""
        sizes = [
            ((box.x2 - box.x1) * scale, (box.y2 - box.y1) * scale)
            for image in self.images
            for scale in [self.size / max(image.width, image.height)]
            for box in image.objects
            if not box.difficult
        ]
        return torch.tensor(sizes).reshape(-1, 2)

    def _read(self, index: int) -> dict[int, LabeledPicture]:
        image = self.images[index]
        height, width = fitted_size(image.height, image.width, self.size)
        scale = torch.tensor([width / image.width, height / image.height] * 2)
        corners = [[box.x1, box.y1, box.x2, box.y2] for box in image.objects]
        item = LabeledPicture(
            read_image(image.path, (3, height, width)),
            torch.tensor(corners).reshape(-1, 4) * scale,
            torch.tensor([self.label[box.label] for box in image.objects], dtype=torch.long),
            torch.tensor([box.difficult for box in image.objects], dtype=torch.bool),
        )
        return {index: item}


class ScenePictures(PictureSet):
    """Generated scenes with the numbers 0 to `count` - 1."""

    def __init__(self, scenes: Scenes, digits: LabeledExamples, seed: int, split: str, count: int):
        super().__init__()
        self.scenes, self.digits, self.seed, self.split, self.count = scenes, digits, seed, split, count

    def __len__(self) -> int:
        return self.count

    def name(self, index: int) -> str:
        """Return split and number."""
        return f"{self.split} scene {index}"

    def box_sizes(self) -> Float32[Tensor, "boxes 2"]:
        """Return the sizes of the boxes of the first 500 scenes."""
        items = [self[index] for index in range(min(500, self.count))]
        boxes = torch.cat([item.boxes[~item.difficult] for item in items])
        return boxes[:, 2:] - boxes[:, :2]

    def _read(self, index: int) -> dict[int, LabeledPicture]:
        first = index - index % SCENES_PER_CALL
        numbers = torch.arange(first, min(first + SCENES_PER_CALL, self.count))
        batch = self.scenes.examples(self.digits, self.seed, self.split, numbers)
        found = {}
        for number, picture, boxes, classes, difficult in zip(numbers.tolist(), *batch, strict=True):
            real = classes >= 0
            found[number] = LabeledPicture(picture, boxes[real], classes[real], difficult[real])
        return found


def collate_pictures(
    items: Sequence[LabeledPicture], proposals: Sequence[Tensor] | None = None, stage: int = 0
) -> DetectionBatch:
    """Return a padded batch; `proposals` (n, 4) are those of each picture."""
    extents = torch.tensor([item.picture.shape[1:] for item in items])
    height, width = (-(-int(side) // MULTIPLE) * MULTIPLE for side in extents.amax(0))
    pictures = torch.full((len(items), 3, height, width), PADDING, dtype=torch.uint8)
    for row, item in zip(pictures, items, strict=True):
        row[:, : item.picture.shape[1], : item.picture.shape[2]] = item.picture
    objects = max(1, *(len(item.boxes) for item in items))
    given = [torch.zeros(0, 4)] * len(items) if proposals is None else proposals
    most = max(len(boxes) for boxes in given)
    return DetectionBatch(
        pictures,
        extents,
        torch.stack([_pad(item.boxes, objects) for item in items]),
        torch.stack([_pad(item.classes, objects, -1) for item in items]),
        torch.stack([_pad(item.difficult, objects) for item in items]),
        torch.stack([_pad(boxes, most) for boxes in given]),
        torch.tensor(stage),
    )


def _pad(x: Tensor, length: int, value: int = 0) -> Tensor:
    """Return x with `length` rows."""
    missing = length - len(x)
    return functional.pad(x, (0, 0) * (x.ndim - 1) + (0, missing), value=value)
