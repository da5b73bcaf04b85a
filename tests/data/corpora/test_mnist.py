"""The real digits; skipped where the archives are neither cached nor downloadable."""

import pytest
import torch

from qkv.data import mnist
from qkv.data.corpora.mnist import SMALL, WHOLE


@pytest.mark.usefixtures("digits_archive")
def test_the_small_variant():
    parts = mnist()
    assert {name: len(part) for name, part in parts.items()} == {"train": 4000, "valid": 500, "test": 500}
    for part in parts.values():
        assert len(set(part.labels.bincount().tolist())) == 1
        assert part.inputs.shape[1:] == (1, 28, 28)
        assert part.inputs.dtype == torch.uint8
    rows = [torch.cat((p.inputs.flatten(1), p.labels[:, None].byte()), 1) for p in parts.values()]
    assert len({bytes(row.tolist()) for row in torch.cat(rows)}) == 5000  # nothing is in two parts


@pytest.mark.usefixtures("whole_archive")
def test_the_whole_variant():
    """Counts of the classes as everybody has them, and the first labels of both files."""
    parts = mnist("whole")
    assert {name: len(part) for name, part in parts.items()} == {"train": 55000, "valid": 5000, "test": 10000}
    counts = parts["train"].labels.bincount() + parts["valid"].labels.bincount()
    assert counts.tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert parts["test"].labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert parts["train"].labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert parts["test"].labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert parts["test"].inputs.double().mean().item() == pytest.approx(33.79, abs=0.01)


def test_an_unknown_variant():
    with pytest.raises(ValueError, match="unknown MNIST variant 'hole'; did you mean 'whole'"):
        mnist("hole")


def test_archives_are_pinned():
    assert [len(archive.sha256) for archive in (SMALL, WHOLE)] == [64, 64]
