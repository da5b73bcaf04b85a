"""A module run without its weights: on torch's meta device, where tensors have shapes and no numbers.

Nothing is computed and nothing is allocated, so a model of any size can be counted. Its own weights
stay where they are: others, empty ones, are put in their place for one call.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from qkv.cost.counter import count_multiplications
from qkv.cost.input_spec import Input


@dataclass(frozen=True)
class Play:
    """A module and what it is called with."""

    module: nn.Module
    inputs: tuple[Input, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of `forward`."""
    real: bool = False
    """On the CPU with copies of its weights, for a module that looks at numbers."""

    def stage(self, sizes: Mapping[str, int]) -> tuple[dict[str, Tensor], list[Tensor]]:
        """Weights and inputs for one call."""
        device = "cpu" if self.real else "meta"
        return self.weights(device), [given.make(sizes, device) for given in self.inputs]

    def weights(self, device: str) -> dict[str, Tensor]:
        """Empty ones in place of the module's, or copies where they are real; tied ones stay tied."""
        twins: dict[int, Tensor] = {}
        found = {}
        for name, weight in (*self._all(self.module.named_parameters), *self._all(self.module.named_buffers)):
            if id(weight) not in twins:
                empty = weight.detach().clone() if self.real else torch.empty_like(weight, device=device)
                if isinstance(weight, nn.Parameter):
                    empty = nn.Parameter(empty, requires_grad=weight.requires_grad)
                twins[id(weight)] = empty
            found[name] = twins[id(weight)]
        return found

    def call(self, weights: Mapping[str, Tensor], tensors: Sequence[Tensor]) -> Any:
        """The module with these weights in the place of its own."""
        return torch.func.functional_call(self.module, dict(weights), tuple(tensors), dict(self.options))

    @staticmethod
    def _all(named: Any) -> list[tuple[str, Any]]:
        return list(named(remove_duplicate=False))


@contextmanager
def mode(module: nn.Module, *, training: bool) -> Iterator[None]:
    """Inside, the module is in training mode or not; afterwards every part is as it was."""
    before = {part: part.training for part in module.modules()}
    module.train(training)
    try:
        yield
    finally:
        for part, was in before.items():
            part.training = was


class NotOnMeta(Exception):  # noqa: N818 - it is an answer more than a fault
    """The module looks at numbers, and there are none; it has to run for real."""


def count(play: Play, sizes: Mapping[str, int], *, trace: bool = False) -> count_multiplications:
    """What one forward pass runs."""
    counting = count_multiplications(strict=False, trace=trace)
    weights, tensors = play.stage(sizes)
    try:
        with torch.no_grad(), counting.following(play.module), counting:
            play.call(weights, tensors)
    except Exception as error:
        if not play.real and needs_numbers(error):
            raise NotOnMeta(str(error).split("\n")[0]) from error
        raise ForwardError(play, sizes, error) from error
    return counting


def count_backward(play: Play, sizes: Mapping[str, int], *, inputs_learn: bool) -> int:
    """Multiplications of the backward pass alone; `inputs_learn`: gradients of the inputs are wanted too."""
    weights, tensors = play.stage(sizes)
    if inputs_learn:
        tensors = [x.requires_grad_() if x.is_floating_point() else x for x in tensors]
    with torch.enable_grad():
        out = sum(x.sum() for x in tensors_in(play.call(weights, tensors)) if x.requires_grad)
        with count_multiplications() as counting:
            if isinstance(out, Tensor):
                out.backward()
    return counting.total


class ForwardError(ValueError):
    """The module's own `forward` failed."""

    def __init__(self, play: Play, sizes: Mapping[str, int], error: BaseException):
        given = ", ".join(map(str, play.inputs))
        at = f" at {', '.join(f'{name}={size}' for name, size in sizes.items())}" if sizes else ""
        what = str(error).strip().split("\n")[0] or type(error).__name__
        super().__init__(f"{type(play.module).__name__} cannot be called with {given}{at}: {what}")


def needs_numbers(error: BaseException) -> bool:
    """Whether torch complains that a tensor without data was looked at."""
    words = ("meta tensor", "Meta tensor", "meta device", "data-dependent", "'Meta' backend", "no data")
    return isinstance(error, NotImplementedError | RuntimeError) and any(word in str(error) for word in words)


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors of a result, however it is packed."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [x for item in value.values() for x in tensors_in(item)]
    if isinstance(value, tuple | list):
        return [x for item in value for x in tensors_in(item)]
    return [x for item in vars(value).values() for x in tensors_in(item)] if hasattr(value, "__dict__") else []
