"""The training objective: everything the loop needs from a task."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from qkv.train.settings import Settings, cosine_schedule

Tensors = tuple[Tensor, ...]


def part_of(length: int, part: int, parts: int) -> slice:
    """Return the places of one part of a time axis: all have ceil(length / parts) places, the last ones what is left.

    A part may be empty, if there are few places.
    """
    size = -(-length // parts)
    return slice(min(part * size, length), min((part + 1) * size, length))


@dataclass(frozen=True)
class Objective:
    """A model, its batches, its loss and its validation.

    All functions are pure: the same step gives the same ids, the same ids give the same tensors.
    """

    model: nn.Module
    order: Callable[[int], list[int]]
    """Step -> ids of its examples, over all processes."""
    collate: Callable[[list[int]], Tensors]
    """Ids -> tensors of these examples."""
    count: Callable[[Tensors], int]
    """Tensors -> number of tokens that the loss is summed over."""
    loss: Callable[[nn.Module, Tensors], Tensor]
    """Model, tensors -> loss summed over those tokens."""
    validate: Callable[[nn.Module, Callable[[], None]], float]
    """(model, callback) -> validation score, lower is better. Call the callback often: it may raise to stop."""
    update: Callable[[nn.Module, Tensors, float], float] | None = None
    """Replacement for gradient and optimizer: change the model at this learning rate, return the summed loss."""
    schedule: Callable[[Settings, int], float] = cosine_schedule
    """Learning rate by step."""
    frozen: tuple[nn.Module, ...] = ()
    """Modules that the loss uses but does not train; they are moved to the model's device."""
    split_sequence: Callable[[Tensors, int, int], Tensors] | None = None
    """(tensors, part, parts) -> the tensors of one part of the time axis, for sequence parallel; None: not possible."""
