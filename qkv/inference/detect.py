"""Find the objects of one picture with a trained detector.

The picture is resized so that its longer side has the length that the detector was trained with, and padded to a
multiple of 32. Boxes are given in pixels of the original picture.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32, UInt8
from numpy import ndarray
from torch import Tensor
from torch.nn import functional

from qkv.data.files.image_files import fit_image, image_shape, read_image
from qkv.models.detectors import Detection, Detector
from qkv.models.detectors.base import Clock, ignore_time
from qkv.models.regions import selective_search

PADDING = 127
"""Gray that pictures are padded with: 0 after normalizing."""
MULTIPLE = 32
"""Heights and widths are padded to multiples of this, so that feature maps of stride 4 to 32 have whole cells."""
MIN_SCORE = 0.5
"""Least score of an object that is shown."""

PictureTensor = UInt8[Tensor, "3 height width"]
PictureSource = str | Path | ndarray | Tensor
"""A file, an array (height, width, 3), or a tensor (3, height, width); arrays and tensors are uint8."""
Proposer = Callable[[PictureTensor], Float32[Tensor, "proposals 4"]]


@dataclass(frozen=True)
class FoundObject:
    """An object in a picture."""

    label: str
    score: float
    """From 0 to 1."""
    box: tuple[float, float, float, float]
    """(x1, y1, x2, y2) in pixels of the picture; the width is x2 - x1."""


def search_regions(picture: PictureTensor) -> Float32[Tensor, "proposals 4"]:
    """Propose regions by selective search."""
    return torch.from_numpy(selective_search(np.ascontiguousarray(picture.movedim(0, 2).numpy())))


@dataclass(frozen=True)
class ObjectFinder:
    """A trained detector with the names of its classes and the size of its pictures."""

    detector: Detector
    classes: tuple[str, ...]
    size: int = 0
    """Longer side of the pictures that it was trained with; 0: pictures keep their size."""
    propose: Proposer = search_regions
    """Proposes the regions of a detector that needs them."""

    def find(
        self, picture: PictureSource, *, min_score: float = MIN_SCORE, clock: Clock = ignore_time
    ) -> list[FoundObject]:
        """Return the objects of a picture with at least this score, the surest first.

        `clock` is called with the name of each part when it is done.
        """
        if not 0 <= min_score <= 1:
            raise ValueError(f"min_score must be from 0 to 1, got {min_score}")
        (height, width), resized = read_picture(picture, self.size)
        found = run_detector(self.detector, resized, self.propose, clock)
        scale = torch.tensor([width / resized.shape[2], height / resized.shape[1]] * 2)
        edges = torch.tensor([width, height] * 2)
        boxes = torch.minimum((found.boxes.float().cpu() * scale).clamp_min(0), edges)
        rows = zip(found.classes.tolist(), found.scores.tolist(), boxes.tolist(), strict=True)
        return [
            FoundObject(self.classes[label], score, (box[0], box[1], box[2], box[3]))
            for label, score, box in rows
            if score >= min_score
        ]


def read_picture(picture: PictureSource, size: int = 0) -> tuple[tuple[int, int], PictureTensor]:
    """Return the (height, width) of a picture, and its pixels resized so that the longer side is `size`; 0: as it is.

    A photograph is turned as its camera was. Gray becomes RGB, and transparent pixels become white.
    """
    if isinstance(picture, str | Path):
        _, height, width = image_shape(Path(picture))
        return (height, width), read_image(Path(picture), (3, *fitted_size(height, width, size)))
    pixels = _check_pixels(picture)
    height, width = pixels.shape[1:]
    return (height, width), fit_image(pixels, (3, *fitted_size(height, width, size)))


def fitted_size(height: int, width: int, longest: int) -> tuple[int, int]:
    """Return (height, width) scaled so that the longer side is `longest`; 0: unchanged."""
    scale = longest / max(height, width) if longest else 1.0
    return max(1, round(height * scale)), max(1, round(width * scale))


@torch.inference_mode()
def run_detector(
    detector: Detector, picture: PictureTensor, propose: Proposer = search_regions, clock: Clock = ignore_time
) -> Detection:
    """Run a detector on one picture; the boxes are in its pixels."""
    device = next(detector.parameters()).device
    regions = propose(picture) if detector.needs_proposals else torch.zeros(0, 4)
    clock("proposals")
    height, width = picture.shape[1:]
    padded = functional.pad(picture, (0, -width % MULTIPLE, 0, -height % MULTIPLE), value=PADDING)
    extents = torch.tensor([[height, width]])
    (found,) = detector.eval().detect(padded[None].to(device), extents.to(device), regions[None].to(device), clock)
    return found


def _check_pixels(picture: ndarray | Tensor) -> PictureTensor:
    """Return the pixels as a tensor; raise for another shape or type."""
    if isinstance(picture, ndarray):
        if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8 or not picture.size:
            raise ValueError(f"picture must be a uint8 array (height, width, 3), got {picture.dtype} {picture.shape}")
        return torch.from_numpy(np.ascontiguousarray(picture)).movedim(2, 0)
    if not isinstance(picture, Tensor):
        raise TypeError(f"picture must be a path, an array or a tensor, got {type(picture).__name__}")
    if picture.ndim != 3 or picture.shape[0] != 3 or picture.dtype != torch.uint8 or not picture.numel():
        raise ValueError(
            f"picture must be a uint8 tensor (3, height, width), got {picture.dtype} {tuple(picture.shape)}"
        )
    return picture.cpu()
