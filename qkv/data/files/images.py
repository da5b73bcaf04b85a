"""Labeled images, uint8 (examples, channels, height, width), from IDX or MedMNIST-style .npz files."""

import re
import zipfile
from pathlib import Path
from typing import Any

import numpy
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from qkv.data.files.idx import read_idx
from qkv.data.labeled import LabeledExamples
from qkv.errors import QkvError
from qkv.storage import open_file

Images = UInt8[Tensor, "examples channels height width"]
NPZ_SPLITS = {"train": "train", "valid": "val", "test": "test"}
"""Name of each split in an .npz file."""


def read_images(images: Path | str, labels: Path | str | None = None) -> LabeledExamples:
    """Read an IDX file of images and its labels (default: the labels file of the same name in that folder)."""
    images = Path(images)
    labels = infer_labels_path(images) if labels is None else Path(labels)
    pixels, classes = read_idx(images, 3), read_idx(labels, 1)
    if len(classes) != len(pixels):
        raise QkvError(
            f"{labels.name} has {len(classes):,} labels, but {images.name} has {len(pixels):,} images",
            labels.parent,
        )
    return LabeledExamples(pixels[:, None], classes.long())


def infer_labels_path(images: Path) -> Path:
    """Return the labels file of an images file: train-images-idx3-ubyte.gz -> train-labels-idx1-ubyte.gz."""
    name = images.name.replace("images", "labels").replace("idx3", "idx1")
    if name == images.name:
        raise QkvError(
            f"the labels file cannot be inferred from the name {images.name}; pass --set data.train_labels=FILE"
        )
    return images.with_name(name)


def read_npz(path: Path | str) -> dict[str, LabeledExamples]:
    """Read the splits of a MedMNIST-style file: train_images, train_labels, and those of val_ and test_ if present."""
    path = Path(path)
    arrays = _load_arrays(path)
    splits = {}
    for split, name in NPZ_SPLITS.items():
        if f"{name}_images" in arrays:
            images = _to_images(arrays[f"{name}_images"], f"{name}_images", path)
            if f"{name}_labels" not in arrays:
                raise QkvError(f"{path.name} has {name}_images, but no {name}_labels", path.parent)
            labels = _to_labels(arrays[f"{name}_labels"], f"{name}_labels", path)
            if len(labels) != len(images):
                raise QkvError(
                    f"{name}_labels has {len(labels):,} labels, but {name}_images has {len(images):,} images", path
                )
            splits[split] = LabeledExamples(images, labels)
    if not splits:
        names = ", ".join(sorted(arrays)) or "nothing"
        raise QkvError(f"{path.name} must have train_images and train_labels, got {names}", path.parent)
    return splits


def read_image_arrays(path: Path) -> dict[str, Images]:
    """Read images without labels: those of an IDX file, or every uint8 array of images in an .npz file, by name."""
    if path.suffix != ".npz":
        return {"": read_idx(path, 3)[:, None]}
    found = _load_arrays(path, r".*")
    arrays = {name: array for name, array in found.items() if str(array.dtype) == "uint8" and array.ndim in (3, 4)}
    if not arrays:
        raise QkvError(f"{path.name} has no uint8 images (examples, height, width[, channels])", path.parent)
    return {name: _to_images(array, name, path) for name, array in arrays.items()}


def is_image_array(path: Path) -> bool:
    """Return whether a file is .npz, or IDX (gzipped, too) by its first bytes."""
    if path.suffix == ".npz" or not path.is_file():
        return path.suffix == ".npz"
    with open_file(path) as file:
        return file.read(4).startswith((b"\0\0\x08\x03", b"\x1f\x8b"))


def _load_arrays(path: Path, names: str = r"(train|val|test)_\w+") -> dict[str, Any]:
    with open_file(path) as file:
        if file.read(2) != b"PK":  # numpy would suggest allow_pickle=True
            raise QkvError(f"{path.name} is not an .npz file: it does not start with PK", path.parent)
        file.seek(0)
        try:
            with numpy.load(file, allow_pickle=False) as found:
                return {name: found[name] for name in found.files if re.fullmatch(names, name)}
        except (ValueError, OSError, EOFError, AttributeError, TypeError, zipfile.BadZipFile) as error:
            raise QkvError(f"{path.name} is not a valid .npz file ({error})", path.parent) from None


def _to_images(array: Any, name: str, path: Path) -> Images:
    if str(array.dtype) != "uint8" or array.ndim not in (3, 4) or not array.size:
        raise QkvError(
            f"{name} must be uint8 (examples, height, width[, channels]), got {array.dtype} {array.shape}", path
        )
    images = torch.from_numpy(array.copy())
    return images[:, None] if images.dim() == 3 else images.movedim(3, 1).contiguous()


def _to_labels(array: Any, name: str, path: Path) -> Int64[Tensor, " examples"]:
    if array.dtype.kind not in "iu" or not array.ndim or not array.size == len(array) > 0:
        raise QkvError(
            f"{name} must be integers, one per image, got {array.dtype} {array.shape}; "
            "multi-label data are not supported",
            path,
        )
    labels = torch.from_numpy(array.reshape(-1).astype("int64"))
    if int(labels.min()) < 0:
        raise QkvError(f"{name} must be at least 0, got {int(labels.min())}", path)
    return labels
