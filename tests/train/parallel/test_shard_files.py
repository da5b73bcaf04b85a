"""Files of shards that no training wrote: what is wrong with them, without a crash and without a pickle."""

import json

import pytest
import torch
from safetensors.torch import save

from qkv.errors import QkvError
from qkv.storage import save_folder
from qkv.train.parallel.shard_files import is_sharded, read_shards, shard_file

KEY = "model.weight"
WHOLE = torch.arange(15.0).reshape(5, 3)


def shard(rows, offsets=None, key=KEY):
    """The bytes of a file with these rows of the tensor, as torch.distributed.checkpoint writes them."""
    info = {key: {"saved_offsets": [rows.start, 0] if offsets is None else offsets}}
    metadata = {"DCP_SHARDING_INFO": json.dumps(info), "DCP_VERSION": "1.0", "format": "pt"}
    return save({key: WHOLE[rows].clone()}, metadata)


def folder_of(tmp_path, *files):
    folder = tmp_path / "step-00000001"
    save_folder(folder, {shard_file(rank): data for rank, data in enumerate(files)})
    return folder


def test_shards_of_different_sizes_make_the_tensor(tmp_path):
    folder = folder_of(tmp_path, shard(slice(0, 3)), shard(slice(3, 5)))
    assert is_sharded(folder)
    assert torch.equal(read_shards(folder)["model"]["weight"], WHOLE)
    assert read_shards(folder, "ema") == {}


def test_whole_state_dicts_are_no_shards(tmp_path):
    save_folder(tmp_path / "plain", {"model.safetensors": save({"weight": WHOLE})})
    assert not is_sharded(tmp_path / "plain")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ((shard(slice(3, 5)),), r"shards of model.weight have 6 values, but its shape \(5, 3\) needs others"),
        ((shard(slice(0, 3)), shard(slice(3, 5), [7, 0])), r"have 15 values, but its shape \(9, 3\)"),
        ((b"no tensors",), "the shards cannot be read: SafetensorError"),
        ((save({KEY: WHOLE}, {"DCP_SHARDING_INFO": "{"}),), "the shards cannot be read: JSONDecodeError"),
        ((save({KEY: WHOLE}, {"DCP_SHARDING_INFO": "{}"}),), "the shards cannot be read: KeyError"),
        ((shard(slice(0, 5), [0]),), "the shards cannot be read|have 15 values"),
    ],
)
def test_wrong_files_are_refused(tmp_path, files, message):
    with pytest.raises(QkvError, match=message) as raised:
        read_shards(folder_of(tmp_path, *files))
    assert raised.value.where == tmp_path / "step-00000001"


def test_a_changed_shard_is_refused_before_it_is_read(tmp_path):
    folder = folder_of(tmp_path, shard(slice(0, 3)), shard(slice(3, 5)))
    path = folder / shard_file(1)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(QkvError, match="shard-00002-model-00001-of-00001.safetensors is damaged"):
        read_shards(folder)
