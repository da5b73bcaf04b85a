"""Examples with one label each."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from qkv.random import derive_seed, uniforms

Ids = Int64[Tensor, " chosen"]


@dataclass(frozen=True)
class Labeled:
    """`inputs` of any shape, example first, and the number of the class of each."""

    inputs: Tensor
    labels: Int64[Tensor, " examples"]

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.labels):
            raise ValueError(f"there must be as many labels as inputs, got {len(self.labels)} and {len(self.inputs)}")

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, ids: Ids) -> "Labeled":
        """These examples."""
        return Labeled(self.inputs[ids], self.labels[ids])

    def hold_out(self, share: float, seed: int = 0, *, least: float = math.inf) -> tuple["Labeled", "Labeled"]:
        """The examples without, and only with, this share of each class, which chance and the seed choose.

        The share is rounded down, but a class of `least` examples or more gives one at any rate.
        """
        chosen = torch.zeros(len(self), dtype=torch.bool)
        for label in self.labels.unique().tolist():
            members = (self.labels == label).nonzero()[:, 0]
            order = uniforms(derive_seed(seed, "held-out examples", int(label)), torch.arange(len(members))).argsort()
            count = max(int(share * len(members)), len(members) >= least)
            chosen[members[order[:count]]] = True
        return self.select((~chosen).nonzero()[:, 0]), self.select(chosen.nonzero()[:, 0])


class Shuffled:
    """Batches of one size in an order that is a pure function of (seed, step).

    The epochs, each shuffled anew, stand in a row and are cut where a batch is full: there is never a small last one.
    """

    def __init__(self, count: int, batch_size: int, seed: int):
        if count < 1 or batch_size < 1:
            raise ValueError(f"count and batch_size must be at least 1, got {count} and {batch_size}")
        self.count, self.batch_size, self.seed = count, min(batch_size, count), seed
        self._epochs: dict[int, Tensor] = {}

    def batch(self, step: int) -> list[int]:
        """Ids of the examples of batch number `step`."""
        _, ids, later = self._pieces(step)
        numbers: list[int] = torch.cat((ids, later)).tolist()
        return numbers

    def visits(self, step: int) -> list[int]:
        """epoch * count + id of the examples of batch number `step`: an example has another number each time."""
        epoch, ids, later = self._pieces(step)
        numbers: list[int] = torch.cat((ids + epoch * self.count, later + (epoch + 1) * self.count)).tolist()
        return numbers

    def _pieces(self, step: int) -> tuple[int, Tensor, Tensor]:
        """The epoch in which the batch begins, its ids of that epoch and those of the next."""
        if step < 0:
            raise ValueError(f"step must be at least 0, got {step}")
        epoch, start = divmod(step * self.batch_size, self.count)
        ids = self._order(epoch)[start : start + self.batch_size]
        later = self._order(epoch + 1)[: self.batch_size - len(ids)] if len(ids) < self.batch_size else ids[:0]
        return epoch, ids, later

    def _order(self, epoch: int) -> Tensor:
        if epoch not in self._epochs:
            key = derive_seed(self.seed, "order of the examples", epoch)
            self._epochs = {number: order for number, order in self._epochs.items() if number == epoch - 1}
            self._epochs[epoch] = uniforms(key, torch.arange(self.count)).argsort(stable=True)
        return self._epochs[epoch]
