"""Batches of about equal length, in an order that is a pure function of (seed, epoch, position).

Each epoch: shuffle the ids, sort by length within pools of 100 batches, cut, shuffle the batches. To continue a run
only the step is needed, and a run on any number of processes sees the same batches.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from qkv.random import derive_seed, uniforms

POOL = 100
"""Batches that are sorted together: more wastes less padding, fewer mixes better."""


class Buckets:
    """The batches of a dataset whose examples have these lengths, or pairs of lengths (source, target).

    The last batch of an epoch's cut is smaller unless the size divides, and may come at any position.
    """

    def __init__(self, lengths: Sequence[int] | Sequence[tuple[int, int]], batch_size: int, seed: int):
        if not len(lengths):
            raise ValueError("lengths must hold at least one length, got none")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        sizes = torch.tensor(lengths)
        if sizes.is_floating_point() or sizes.dim() > 2 or sizes.min() < 0:
            raise ValueError(f"lengths must be whole numbers or pairs of them, at least 0, got {lengths[0]!r}, ...")
        self.batch_size = batch_size
        self.seed = seed
        self.per_epoch = -(-len(lengths) // batch_size)
        """Batches in an epoch."""
        # the place of each length among all: equal ones share it, and pairs go by source, then target
        self._ranks = torch.unique(sizes, dim=0, return_inverse=True)[1]
        self._current: tuple[int, tuple[Tensor, ...]] | None = None

    def batch(self, epoch: int, position: int) -> list[int]:
        """The ids of the examples of this batch."""
        if epoch < 0:
            raise ValueError(f"epoch must be at least 0, got {epoch}")
        if not 0 <= position < self.per_epoch:
            raise ValueError(f"position must be 0 to {self.per_epoch - 1}, got {position}")
        current = self._current
        if current is None or current[0] != epoch:
            current = self._current = epoch, self._batches(epoch)
        return current[1][position].tolist()

    def at(self, step: int) -> tuple[int, int]:
        """Epoch and position of a step, counted from 0."""
        if step < 0:
            raise ValueError(f"step must be at least 0, got {step}")
        return divmod(step, self.per_epoch)

    def _batches(self, epoch: int) -> tuple[Tensor, ...]:
        order = self._shuffle("order of the examples", epoch, len(self._ranks))
        pools = torch.arange(len(order)) // (POOL * self.batch_size)
        places = pools * len(order) + self._ranks[order]
        cut = order[places.argsort(stable=True)].split(self.batch_size)
        return tuple(cut[place] for place in self._shuffle("order of the batches", epoch, len(cut)))

    def _shuffle(self, purpose: str, epoch: int, count: int) -> Tensor:
        return uniforms(derive_seed(self.seed, purpose, epoch), torch.arange(count)).argsort(stable=True)


def shard(ids: Sequence[int], rank: int, world: int) -> list[int]:
    """The part of a batch that process `rank` of `world` takes: ids[rank::world].

    A small batch may leave some processes with one example fewer, or with none.
    """
    if not 0 <= rank < world:
        raise ValueError(f"rank must be 0 to world - 1 = {world - 1}, got {rank}")
    return list(ids[rank::world])
