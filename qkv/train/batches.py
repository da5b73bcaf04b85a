"""The tensors of each update, prepared by other processes if there are any to spare."""

import signal
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch.utils.data import DataLoader, Dataset

from qkv.data import shard
from qkv.train.distributed import Group
from qkv.train.objective import Objective, Tensors


class Update(NamedTuple):
    """What one process computes of an update: its parts, one after the other; there is at least one."""

    parts: list[Tensors]
    idle: bool
    """There are fewer examples than processes: this one computes another's, which must not count."""


class Updates(Dataset[Update]):
    """Update number `step` on this process."""

    def __init__(self, task: Objective, accumulate: int, group: Group):
        self.order, self.collate = task.order, task.collate
        self.accumulate, self.rank, self.world = accumulate, group.rank, group.world

    def __getitem__(self, step: int) -> Update:
        ids = self.order(step)
        if not ids:
            raise ValueError(f"task.order({step}) must give at least one id, got none")
        mine = shard(ids, self.rank, self.world)
        taken = mine or ids[:1]
        parts = [taken[part :: self.accumulate] for part in range(min(self.accumulate, len(taken)))]
        return Update([self.collate(part) for part in parts], idle=not mine)

    def load(self, steps: range, workers: int) -> Iterator[Update]:
        """These updates in order, prepared ahead by `workers` processes; they are the same for any number of them."""
        if not workers:  # a loader without any does the same, more slowly
            yield from map(self.__getitem__, steps)
            return
        yield from DataLoader(
            self,
            batch_size=None,
            sampler=steps,
            num_workers=workers,
            collate_fn=_as_it_is,
            worker_init_fn=_leave_signals_to_the_loop,
            # a task holds functions, which a forked process need not be sent
            multiprocessing_context="fork",
        )


def _as_it_is(update: Any) -> Any:
    return update


def _leave_signals_to_the_loop(_: int) -> None:
    """A signal to the whole group must not take the workers away while the loop finishes its step."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
