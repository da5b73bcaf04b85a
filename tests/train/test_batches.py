from types import SimpleNamespace

import pytest
import torch

from qkv.train.batches import TrainBatches
from qkv.train.parallel.mesh import Mesh


def batch_of(ids, rank, mesh, accumulate):
    """Step 0 of an objective whose tensors are its ids; an empty batch fails."""

    def collate(some):
        assert some
        return (torch.tensor(some),)

    def split(tensors, part, parts):
        return (tensors[0] * parts + part,)

    objective = SimpleNamespace(order=lambda step: ids, collate=collate, split_sequence=split)
    group = SimpleNamespace(mesh=mesh, coordinates=mesh.coordinates(rank))
    batch = TrainBatches(objective, accumulate, group)[0]
    return [part[0].tolist() for part in batch.micro_batches], batch.idle


@pytest.mark.parametrize("accumulate", [1, 2, 5, 40])
@pytest.mark.parametrize("world", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [1, 2, 3, 6, 29])
def test_every_example_is_computed_once_and_nobody_has_nothing_to_do(count, world, accumulate):
    ids = list(range(100, 100 + count))
    found = [batch_of(ids, rank, Mesh(data=world), accumulate) for rank in range(world)]
    counted = [number for parts, idle in found if not idle for part in parts for number in part]
    assert sorted(counted) == ids
    assert [idle for _, idle in found] == [rank >= count for rank in range(world)]
    assert all(1 <= len(parts) <= accumulate for parts, _ in found)
    assert all(parts == [ids[:1]] for parts, idle in found if idle)


@pytest.mark.parametrize("accumulate", [1, 2, 5])
@pytest.mark.parametrize("count", [1, 2, 3, 6, 11])
def test_processes_that_share_a_model_compute_as_many_micro_batches(count, accumulate):
    """Those of the axis sequence have parts of the same examples; what is left over is idle, and at the end."""
    ids, mesh = list(range(100, 100 + count)), Mesh(data=2, shard=2, sequence=2)
    found = [batch_of(ids, rank, mesh, accumulate) for rank in range(8)]
    assert len({len(parts) for parts, _ in found}) == 1
    for part in (0, 1):
        counted = [x for parts, idle in found[part::2] for one in parts[: len(parts) - idle] for x in one]
        assert sorted(counted) == [2 * number + part for number in ids]
        extra = [one for parts, idle in found[part::2] for one in parts[len(parts) - idle :]]
        assert all(one == [2 * ids[0] + part] for one in extra)
    assert sum(idle for _, idle in found) == 2 * max(0, 4 * len(found[0][0]) - count)
