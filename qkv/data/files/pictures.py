"""Pictures with a class: bytes (examples, channels, height, width), from IDX or MedMNIST-style .npz files."""

import re
import zipfile
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from qkv.data.files.idx import read_idx
from qkv.data.labeled import Labeled
from qkv.storage import QkvError, open_file

Images = UInt8[Tensor, "examples channels height width"]
PARTS = {"train": "train", "valid": "val", "test": "test"}
"""Our names of the parts, and those in an .npz file."""


def read_pictures(images: Path | str, labels: Path | str | None = None) -> Labeled:
    """An IDX file of pictures and that of their labels; without one, the file beside it that is named for labels."""
    images = Path(images)
    labels = labels_beside(images) if labels is None else Path(labels)
    pictures, classes = read_idx(images, 3), read_idx(labels, 1)
    if len(classes) != len(pictures):
        raise QkvError(
            f"{labels.name} has {len(classes):,} labels, but {images.name} has {len(pictures):,} pictures",
            labels.parent,
        )
    return Labeled(pictures[:, None], classes.long())


def labels_beside(images: Path) -> Path:
    """train-images-idx3-ubyte.gz -> train-labels-idx1-ubyte.gz"""
    name = images.name.replace("images", "labels").replace("idx3", "idx1")
    if name == images.name:
        raise QkvError(f"{images.name} does not say which file holds its labels: --set data.train_labels=FILE")
    return images.with_name(name)


def read_npz(path: Path | str) -> dict[str, Labeled]:
    """The parts of a MedMNIST-style file: train_images, train_labels, and val_ and test_ of them if they are there."""
    path = Path(path)
    arrays = _arrays(path)
    parts = {}
    for part, name in PARTS.items():
        if f"{name}_images" in arrays:
            images = _images(arrays[f"{name}_images"], f"{name}_images", path)
            if f"{name}_labels" not in arrays:
                raise QkvError(f"{path.name} has {name}_images, but no {name}_labels", path.parent)
            labels = _labels(arrays[f"{name}_labels"], f"{name}_labels", path)
            if len(labels) != len(images):
                raise QkvError(
                    f"{name}_labels has {len(labels):,} labels, but {name}_images has {len(images):,} pictures", path
                )
            parts[part] = Labeled(images, labels)
    if not parts:
        names = ", ".join(sorted(arrays)) or "nothing"
        raise QkvError(f"{path.name} must have train_images and train_labels, but has {names}", path.parent)
    return parts


def _arrays(path: Path) -> dict[str, Any]:
    try:
        import numpy  # noqa: PLC0415 - an extra
    except ImportError:
        raise QkvError('.npz files need numpy, which is not installed: pip install "qkv[data]"') from None
    with open_file(path) as file:
        if file.read(2) != b"PK":  # numpy would take it for a pickle, and advise to trust it
            raise QkvError(f"{path.name} is no .npz file: it does not begin as one", path.parent)
        file.seek(0)
        try:
            with numpy.load(file, allow_pickle=False) as found:
                return {name: found[name] for name in found.files if re.fullmatch(r"(train|val|test)_\w+", name)}
        except (ValueError, OSError, EOFError, AttributeError, TypeError, zipfile.BadZipFile) as error:
            raise QkvError(f"{path.name} is no .npz file, or a damaged one ({error})", path.parent) from None


def _images(array: Any, name: str, path: Path) -> Images:
    if str(array.dtype) != "uint8" or array.ndim not in (3, 4) or not array.size:
        raise QkvError(
            f"{name} must be bytes (examples, height, width[, channels]), but is {array.dtype} {array.shape}", path
        )
    images = torch.from_numpy(array.copy())
    return images[:, None] if images.dim() == 3 else images.movedim(3, 1).contiguous()


def _labels(array: Any, name: str, path: Path) -> Int64[Tensor, " examples"]:
    if array.dtype.kind not in "iu" or not array.ndim or not array.size == len(array) > 0:
        raise QkvError(
            f"{name} must be whole numbers, one for each picture, but is {array.dtype} {array.shape}; "
            "several classes at once are not for this task",
            path,
        )
    labels = torch.from_numpy(array.reshape(-1).astype("int64"))
    if int(labels.min()) < 0:
        raise QkvError(f"{name} must be 0 or more, but has {int(labels.min())}", path)
    return labels
