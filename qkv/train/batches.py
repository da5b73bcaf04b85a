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
    idle: int = 0
    """How many of them, at the end, only repeat an example, with weight 0: other processes have more examples."""

    @property
    def counted(self) -> list[Tensors]:
        """The micro-batches that are not idle."""
        return self.micro_batches[: len(self.micro_batches) - self.idle]


class TrainBatches(Dataset[TrainBatch]):
    """Batches of this process by step."""

    def __init__(self, objective: Objective, accumulation_steps: int, group: ProcessGroup):
        self.order, self.collate, self.split_sequence = objective.order, objective.collate, objective.split_sequence
        self.accumulation_steps, self.mesh, self.coordinates = accumulation_steps, group.mesh, group.coordinates
        self.batch_shard = self.coordinates.data * self.mesh.shard + self.coordinates.shard

    def __getitem__(self, step: int) -> TrainBatch:
        ids = self.order(step)
        if not ids:
            raise ValueError(f"objective.order({step}) must give at least one id, got none")
        own = shard(ids, self.batch_shard, self.mesh.batch_shards)
        count = self._count_micro_batches(len(ids), len(own))
        parts = [own[number :: self.accumulation_steps] for number in range(count)]
        return TrainBatch([self._collate(part or ids[:1]) for part in parts], idle=parts.count([]))

    def _count_micro_batches(self, examples: int, own: int) -> int:
        """Return the number of micro-batches; processes that share parameters compute together, so all have as many."""
        most = -(-examples // self.mesh.batch_shards) if self.mesh.parameter_shards > 1 else own
        return min(self.accumulation_steps, max(most, 1))

    def _collate(self, ids: list[int]) -> Tensors:
        tensors = self.collate(ids)
        if self.mesh.sequence == 1:
            return tensors
        assert self.split_sequence is not None
        return self.split_sequence(tensors, self.coordinates.sequence, self.mesh.sequence)

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
