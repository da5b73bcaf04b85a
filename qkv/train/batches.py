"""The batch of each training step, collated by worker processes where there are any."""

import signal
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch.utils.data import DataLoader, Dataset

from qkv.data import shard
from qkv.train.distributed import ProcessGroup
from qkv.train.objective import Objective, Tensors


class TrainBatch(NamedTuple):
    """This process's share of one training step."""

    micro_batches: list[Tensors]
    """Computed one after the other, gradients accumulated; at least one."""
    idle: bool
    """Whether there are fewer examples than processes: this one repeats an example, with weight 0."""


class TrainBatches(Dataset[TrainBatch]):
    """Batches of this process by step."""

    def __init__(self, objective: Objective, accumulation_steps: int, group: ProcessGroup):
        self.order, self.collate = objective.order, objective.collate
        self.accumulation_steps, self.rank, self.world_size = accumulation_steps, group.rank, group.world_size

    def __getitem__(self, step: int) -> TrainBatch:
        ids = self.order(step)
        if not ids:
            raise ValueError(f"objective.order({step}) must give at least one id, got none")
        own = shard(ids, self.rank, self.world_size)
        used = own or ids[:1]
        count = min(self.accumulation_steps, len(used))
        micro_batches = [self.collate(used[number :: self.accumulation_steps]) for number in range(count)]
        return TrainBatch(micro_batches, idle=not own)

    def load(self, steps: range, workers: int) -> Iterator[TrainBatch]:
        """Yield the batches of these steps, prefetched by `workers` processes; their number changes no batch."""
        if not workers:  # the same as a DataLoader without workers, but faster
            yield from map(self.__getitem__, steps)
            return
        yield from DataLoader(
            self,
            batch_size=None,
            sampler=steps,
            num_workers=workers,
            collate_fn=_identity,
            worker_init_fn=_ignore_signals,
            # the objective holds closures, which cannot be pickled for a spawned process
            multiprocessing_context="fork",
        )


def _identity(batch: Any) -> Any:
    return batch


def _ignore_signals(_: int) -> None:
    """Ignore stop signals in a worker: the main process handles them, and needs the worker to finish its step."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
