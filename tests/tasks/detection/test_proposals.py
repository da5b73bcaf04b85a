"""External proposals are computed once per picture and read from the cache afterwards."""

import numpy as np
import pytest
import torch

from qkv.models.regions import selective_search
from qkv.tasks.detection import proposals
from qkv.tasks.detection.proposals import prepare_proposals, propose


@pytest.fixture
def picture(tmp_path, monkeypatch):
    monkeypatch.setenv("QKV_CACHE", str(tmp_path))
    found = torch.full((3, 40, 50), 60, dtype=torch.uint8)
    found[:, 10:26, 12:35] = 220
    return found


def test_proposals_are_those_of_selective_search(picture):
    expected = selective_search(np.ascontiguousarray(picture.movedim(0, 2).numpy()), scales=(50.0, 150.0), min_size=5)
    found = propose(picture)
    assert torch.equal(found.boxes, torch.from_numpy(expected))
    assert found.seconds > 0


def test_second_call_reads_the_cache(picture, monkeypatch):
    first = propose(picture)
    monkeypatch.setattr(proposals, "selective_search", lambda _, **__: pytest.fail("computed twice"))
    second = propose(picture)
    assert torch.equal(first.boxes, second.boxes)
    assert first.seconds == second.seconds


def test_another_picture_has_proposals_of_its_own(picture, tmp_path):
    prepare_proposals([picture, picture.flip(2), picture])
    assert len(list(tmp_path.rglob("*.npz"))) == 2


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 not an archive", b"\x93NUMPY"])
def test_damaged_cache_entry_is_computed_again(picture, tmp_path, damage):
    first = propose(picture)
    (file,) = tmp_path.rglob("*.npz")
    file.write_bytes(damage)
    assert torch.equal(propose(picture).boxes, first.boxes)
