"""What the training loop needs to know of a job, and no more."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from qkv.train.settings import Settings, learning_rate

Tensors = tuple[Tensor, ...]


@dataclass(frozen=True)
class Objective:
    """A model, its examples in order, and how well it does.

    All functions are pure: the same step gives the same ids, the same ids the same tensors.
    """

    model: nn.Module
    order: Callable[[int], list[int]]
    """Ids of the examples of update number `step`, over all processes."""
    collate: Callable[[list[int]], Tensors]
    """The tensors of these examples."""
    count: Callable[[Tensors], int]
    """How many tokens the loss of these tensors is a sum over."""
    loss: Callable[[nn.Module, Tensors], Tensor]
    """The sum of the loss over those tokens."""
    validate: Callable[[nn.Module, Callable[[], None]], float]
    """How bad the model is on held-out examples; calls its second argument often, which may raise to stop."""
    update: Callable[[nn.Module, Tensors, float], float] | None = None
    """Instead of a gradient and the optimizer: change the model at this learning rate; gives the sum of the loss."""
    rate: Callable[[Settings, int], float] = learning_rate
    """The learning rate of a step."""
    beside: tuple[nn.Module, ...] = ()
    """What the loss asks beside the model, and does not train; it goes where the model goes."""
