from types import SimpleNamespace

import pytest
import torch

from qkv.train.batches import TrainBatches


def batch_of(ids, rank, world, accumulate):
    """Step 0 of an objective whose tensors are its ids; an empty batch fails."""

    def collate(some):
        assert some
        return (torch.tensor(some),)

    objective = SimpleNamespace(order=lambda step: ids, collate=collate)
    batch = TrainBatches(objective, accumulate, SimpleNamespace(rank=rank, world_size=world))[0]
    return [part[0].tolist() for part in batch.micro_batches], batch.idle


@pytest.mark.parametrize("accumulate", [1, 2, 5, 40])
@pytest.mark.parametrize("world", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [1, 2, 3, 6, 29])
def test_every_example_is_computed_once_and_nobody_has_nothing_to_do(count, world, accumulate):
    ids = list(range(100, 100 + count))
    found = [batch_of(ids, rank, world, accumulate) for rank in range(world)]
    counted = [number for parts, idle in found if not idle for part in parts for number in part]
    assert sorted(counted) == ids
    assert [idle for _, idle in found] == [rank >= count for rank in range(world)]
    assert all(1 <= len(parts) <= accumulate for parts, _ in found)
    assert all(parts == [ids[:1]] for parts, idle in found if idle)
