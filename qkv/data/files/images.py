"""Labeled images, uint8 (examples, channels, height, width), from IDX or MedMNIST-style .npz files."""

import re
import tokenize
import zipfile
import zlib
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy
import numpy.lib.format
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from qkv.data.files.idx import read_idx
from qkv.data.files.limits import MAX_CLASSES, require_size
from qkv.data.labeled import LabeledExamples
from qkv.errors import QkvError
from qkv.storage import open_file

Images = UInt8[Tensor, "examples channels height width"]
MAX_DIRECTORY_BYTES = 2**20
"""Largest list of arrays in an .npz file, at least 46 bytes each; zipfile reads the list as a whole."""
MAX_LISTED = 8
"""Maximum number of arrays that an error message lists."""
_BAD_ARCHIVE = (
    *(
        ValueError,
        OSError,
        EOFError,
        AttributeError,
        TypeError,
        SyntaxError,
        KeyError,
        RuntimeError,
        NotImplementedError,
    ),
    *(MemoryError, RecursionError, zipfile.BadZipFile, zlib.error, tokenize.TokenError),
)
"""Exceptions that zipfile and numpy raise for a damaged file."""
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
        try:
            _require_short_directory(file, path)
            with zipfile.ZipFile(file) as archive:
                members = {member.removesuffix(".npy"): member for member in archive.namelist()}
                wanted = {name: member for name, member in members.items() if re.fullmatch(names, name)}
                if not wanted:
                    listed = ", ".join(sorted(members)[:MAX_LISTED]) or "nothing"
                    raise QkvError(
                        f"{path.name} must have train_images and train_labels, but has {listed}", path.parent
                    )
                return {name: _load_array(archive, member, path) for name, member in wanted.items()}
        except _BAD_ARCHIVE as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise QkvError(f"{path.name} is not a valid .npz file ({reason[:200].rstrip('.')})", path.parent) from None


def _require_short_directory(file: IO[bytes], path: Path) -> None:
    """Raise if the archive lists too many arrays, before the list is read."""
    end = zipfile._EndRecData(file)  # type: ignore[attr-defined] # what ZipFile itself reads first
    if end is not None and end[5] > MAX_DIRECTORY_BYTES:
        raise QkvError(
            f"{path.name} lists {end[4]:,} arrays in {end[5]:,} bytes; at most {MAX_DIRECTORY_BYTES:,} bytes are read",
            path.parent,
        )


def _load_array(archive: zipfile.ZipFile, member: str, path: Path) -> Any:
    """Read one array, whose header must give the size that the archive gives; numpy would believe the header."""
    packed = archive.getinfo(member)
    with archive.open(member) as file:
        version = numpy.lib.format.read_magic(file)
        read_header = {1: numpy.lib.format.read_array_header_1_0, 2: numpy.lib.format.read_array_header_2_0}
        if version[0] not in read_header:
            raise ValueError(f"{member} has version {version[0]} of the format")
        shape, _, dtype = read_header[version[0]](file)
        if dtype.hasobject:
            raise ValueError(f"Object arrays cannot be loaded: {member} is a pickle, which can run code")
        size = file.tell() + dtype.itemsize * prod(shape)
    if size != packed.file_size:
        raise ValueError(f"{member} has {packed.file_size:,} bytes, but its header gives {size:,}")
    require_size(member, size, path)
    with archive.open(member) as file:
        return numpy.lib.format.read_array(file, allow_pickle=False)


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
    lowest, highest = int(labels.min()), int(array.max())
    if lowest < 0 and array.dtype.kind == "i":
        raise QkvError(f"{name} must be at least 0, got {lowest}", path)
    if highest >= MAX_CLASSES:
        raise QkvError(f"{name} must be classes from 0 to {MAX_CLASSES - 1:,}, got {highest:,}", path)
    return labels
