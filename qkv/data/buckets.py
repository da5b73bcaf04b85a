"""Batches of similar length, in an order that is a pure function of (seed, epoch, position).

Each epoch: shuffle the ids, sort by length within pools of 100 batches, split into batches, shuffle the batches.
Resuming a run needs only the step, and a run on any number of processes sees the same batches.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from qkv.random import derive_seed, uniforms

POOL_BATCHES = 100
"""Batches that are sorted together: a larger pool wastes less padding, a smaller one shuffles better."""


class Buckets:
    """Batches of a data set whose examples have these lengths, or pairs of lengths (source, target).

    One batch of an epoch is smaller unless `batch_size` divides the number of examples; it may come at any position.
    """

    def __init__(self, lengths: Sequence[int] | Sequence[tuple[int, int]], batch_size: int, seed: int):
        if not len(lengths):
            raise ValueError("lengths must hold at least one length, got none")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        sizes = torch.tensor(lengths)
        if sizes.is_floating_point() or sizes.dim() > 2 or sizes.min() < 0:
            raise ValueError(f"lengths must be integers or pairs of integers, at least 0, got {lengths[0]!r}, ...")
        self.batch_size = batch_size
        self.seed = seed
        self.batches_per_epoch = -(-len(lengths) // batch_size)
        """Batches in an epoch."""
        # dense ranks: equal lengths share a rank; pairs are ranked by source, then target
        self._ranks = torch.unique(sizes, dim=0, return_inverse=True)[1]
        self._current: tuple[int, tuple[Tensor, ...]] | None = None

    def batch(self, epoch: int, position: int) -> list[int]:
        """Return the ids of the examples of this batch."""
        if epoch < 0:
            raise ValueError(f"epoch must be at least 0, got {epoch}")
        if not 0 <= position < self.batches_per_epoch:
            raise ValueError(f"position must be 0 to {self.batches_per_epoch - 1}, got {position}")
        current = self._current
        if current is None or current[0] != epoch:
            current = self._current = epoch, self._batches(epoch)
        return current[1][position].tolist()

    def locate(self, step: int) -> tuple[int, int]:
        """Return the epoch and the position of a step, counted from 0."""
        if step < 0:
            raise ValueError(f"step must be at least 0, got {step}")
        return divmod(step, self.batches_per_epoch)

    def _batches(self, epoch: int) -> tuple[Tensor, ...]:
        order = self._shuffle("order of the examples", epoch, len(self._ranks))
        pools = torch.arange(len(order)) // (POOL_BATCHES * self.batch_size)
        sort_keys = pools * len(order) + self._ranks[order]
        batches = order[sort_keys.argsort(stable=True)].split(self.batch_size)
        return tuple(batches[index] for index in self._shuffle("order of the batches", epoch, len(batches)))

    def _shuffle(self, purpose: str, epoch: int, count: int) -> Tensor:
        return uniforms(derive_seed(self.seed, purpose, epoch), torch.arange(count)).argsort(stable=True)


def shard(ids: Sequence[int], rank: int, world_size: int) -> list[int]:
    """Return the part of a batch for process `rank`: ids[rank::world_size].

    A small batch may leave some processes with one example fewer, or with none.
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be 0 to world_size - 1 = {world_size - 1}, got {rank}")
    return list(ids[rank::world_size])
