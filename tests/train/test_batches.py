from types import SimpleNamespace

import pytest
import torch

from qkv.train.batches import TrainBatches


def updates(ids, rank, world, accumulate):
    """Update 0 of a task whose tensors are its ids; an empty batch cannot be made."""

    def collate(some):
        assert some
        return (torch.tensor(some),)

    task = SimpleNamespace(order=lambda step: ids, collate=collate)
    update = TrainBatches(task, accumulate, SimpleNamespace(rank=rank, world=world))[0]
    return [part[0].tolist() for part in update.micro_batches], update.idle


@pytest.mark.parametrize("accumulate", [1, 2, 5, 40])
@pytest.mark.parametrize("world", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [1, 2, 3, 6, 29])
def test_every_example_is_computed_once_and_nobody_has_nothing_to_do(count, world, accumulate):
    ids = list(range(100, 100 + count))
    found = [updates(ids, rank, world, accumulate) for rank in range(world)]
    counted = [number for parts, idle in found if not idle for part in parts for number in part]
    assert sorted(counted) == ids
    assert [idle for _, idle in found] == [rank >= count for rank in range(world)]
    assert all(1 <= len(parts) <= accumulate for parts, _ in found)
    assert all(parts == [ids[:1]] for parts, idle in found if idle)
