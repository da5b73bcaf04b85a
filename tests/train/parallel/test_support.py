"""What cannot be trained on a mesh, in one sentence."""

import pytest
import torch
from torch import nn

from qkv.errors import QkvError
from qkv.models import Decoder, DecoderConfig
from qkv.train import Compute, Objective
from qkv.train.parallel.mesh import Mesh
from qkv.train.parallel.support import require_mesh_support

SHARDS = Mesh(shard=2)


def of(model, **given):
    unused = dict.fromkeys(("order", "collate", "count", "loss", "validate"))
    return Objective(model, **{**unused, **given})


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))


class Choosing(nn.Linear):
    has_unused_parameters = True


@pytest.mark.parametrize(
    ("objective", "mesh", "message"),
    [
        (of(nn.Sequential(nn.BatchNorm1d(3))), SHARDS, "batch normalization would have other statistics"),
        (of(Scaled()), SHARDS, "parameter scale is one number and cannot be sharded"),
        (of(Choosing(2, 3)), SHARDS, "Choosing does not use all parameters in each step"),
        (of(nn.Linear(2, 3)), Mesh(sequence=2), "this task does not split its sequences"),
        (of(nn.Linear(2, 3), split_sequence=max), Mesh(sequence=2), "Linear cannot split its sequences"),
    ],
)
def test_what_cannot_be_trained_is_named(objective, mesh, message):
    with pytest.raises(ValueError, match=message):
        require_mesh_support(objective, mesh)


def test_a_task_with_its_own_update_needs_one_process():
    objective = of(nn.Linear(2, 3), update=max)
    require_mesh_support(objective, Mesh())
    for mesh in (Mesh(data=2), SHARDS):
        with pytest.raises(QkvError, match="updates its model itself, which needs one process, got 2 processes"):
            require_mesh_support(objective, mesh)


def test_replicas_take_every_model():
    require_mesh_support(of(nn.Sequential(nn.BatchNorm1d(3), Scaled(), Choosing(2, 3))), Mesh(data=2))


def test_a_decoder_can_be_sharded_and_split():
    model = Decoder(DecoderConfig(dim=8, heads=2, hidden_dim=6, layers=1), 5)
    require_mesh_support(of(model, split_sequence=max), Mesh(shard=2, sequence=2))


def test_shards_are_not_compiled(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="compile needs a process to have the whole model, got mesh data=1,shard=2"):
        Compute(compile=True, mesh=SHARDS)
    assert Compute(compile=True, mesh=Mesh(data=2)).compile
