"""Examples with one class label each."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from qkv.random import derive_seed, uniforms

Ids = Int64[Tensor, " chosen"]


@dataclass(frozen=True)
class LabeledExamples:
    """`inputs` of any shape, examples on the first axis, and the class index of each."""

    inputs: Tensor
    labels: Int64[Tensor, " examples"]

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.labels):
            raise ValueError(
                f"labels and inputs must have the same length, got {len(self.labels)} and {len(self.inputs)}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, ids: Ids) -> "LabeledExamples":
        """Return these examples."""
        return LabeledExamples(self.inputs[ids], self.labels[ids])

    def hold_out(
        self, fraction: float, seed: int = 0, *, min_class_size: float = math.inf
    ) -> tuple["LabeledExamples", "LabeledExamples"]:
        """Split into the examples that stay and a random `fraction` of each class.

        The count is rounded down, but a class of at least `min_class_size` examples always gives one.
        """
        is_held_out = torch.zeros(len(self), dtype=torch.bool)
        for label in self.labels.unique().tolist():
            members = (self.labels == label).nonzero()[:, 0]
            order = uniforms(derive_seed(seed, "held-out examples", int(label)), torch.arange(len(members))).argsort()
            count = max(int(fraction * len(members)), len(members) >= min_class_size)
            is_held_out[members[order[:count]]] = True
        return self.select((~is_held_out).nonzero()[:, 0]), self.select(is_held_out.nonzero()[:, 0])


class ShuffledBatches:
    """Batches of one size in an order that is a pure function of (seed, step).

    Epochs, each with its own shuffle, are concatenated before they are split: there is never a smaller last batch.
    """

    def __init__(self, count: int, batch_size: int, seed: int):
        if count < 1 or batch_size < 1:
            raise ValueError(f"count and batch_size must be at least 1, got {count} and {batch_size}")
        self.count, self.batch_size, self.seed = count, min(batch_size, count), seed
        self._epochs: dict[int, Tensor] = {}

    def batch(self, step: int) -> list[int]:
        """Return the ids of the examples of batch `step`."""
        _, ids, next_epoch_ids = self._epoch_parts(step)
        batch: list[int] = torch.cat((ids, next_epoch_ids)).tolist()
        return batch

    def visit_ids(self, step: int) -> list[int]:
        """Return epoch * count + id for each example of batch `step`, so each visit to an example has its own id."""
        epoch, ids, next_epoch_ids = self._epoch_parts(step)
        visits = torch.cat((ids + epoch * self.count, next_epoch_ids + (epoch + 1) * self.count))
        batch: list[int] = visits.tolist()
        return batch

    def _epoch_parts(self, step: int) -> tuple[int, Tensor, Tensor]:
        """Return the epoch in which the batch starts, its ids in that epoch and its ids in the next."""
        if step < 0:
            raise ValueError(f"step must be at least 0, got {step}")
        epoch, start = divmod(step * self.batch_size, self.count)
        ids = self._order(epoch)[start : start + self.batch_size]
        missing = self.batch_size - len(ids)
        return epoch, ids, self._order(epoch + 1)[:missing] if missing else ids[:0]

    def _order(self, epoch: int) -> Tensor:
        if epoch not in self._epochs:
            key = derive_seed(self.seed, "order of the examples", epoch)
            self._epochs = {other: order for other, order in self._epochs.items() if other == epoch - 1}
            self._epochs[epoch] = uniforms(key, torch.arange(self.count)).argsort(stable=True)
        return self._epochs[epoch]
