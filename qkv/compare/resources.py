"""The resources that a model needs for a task: counted where possible, otherwise measured."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from qkv.cost import UncountedError, count_multiplications, measure
from qkv.runs import Config, build, make_objective
from qkv.tasks import Task
from qkv.train.objective import Tensors
from qkv.train.optimizer import make_optimizer


@dataclass(frozen=True)
class Resources:
    """Size, work and memory of one model, trained or not."""

    parameters: int
    state_bytes: int | None
    """Decoding state of one sequence at the task's length; None: the model cannot decode."""
    multiplications: int | None
    """Multiplications of one forward pass over that sequence; None: an operation has no formula."""
    peak_bytes: int
    """Peak memory of a training step (forward, backward, update) beyond the weights."""


def measure_resources(config: Config, task: Task, batch: Tensors, device: str) -> Resources:
    """Return what a model of this configuration needs for `task.example_batch`; raise if it cannot be built or run."""
    model = build(config, task).eval()
    return Resources(
        parameters=sum(p.numel() for p in model.parameters()),
        state_bytes=_state_bytes(model, task, batch),
        multiplications=_count(config, task, batch),
        peak_bytes=measure(_training_step(model.to(device), task, config), device, repetitions=1).peak_bytes,
    )


@torch.no_grad()
def _count(config: Config, task: Task, batch: Tensors) -> int | None:
    model = build(config, task).double().eval()  # in float64, a recurrent layer runs as visible products
    try:
        with count_multiplications() as counted:
            if not task.run_example(model, batch):
                make_objective(config, task, model).loss(model, batch)
    except UncountedError:
        return None
    return counted.total


@torch.inference_mode()
def _state_bytes(model: nn.Module, task: Task, batch: Tensors) -> int | None:
    """Return the bytes of the decoding state after the whole batch: attention, convolutions, encoded source."""
    state = task.decoding_state(model, batch)
    if state is None:
        return None
    unused = ("source", "context") if getattr(model, "attention", True) is None else ()
    return _bytes(state) - sum(_bytes(getattr(state, name)) for name in unused)


def _bytes(state: Any) -> int:
    if isinstance(state, Tensor):
        return state.nbytes
    if isinstance(state, tuple):
        return sum(map(_bytes, state))
    if hasattr(state, "bytes"):
        return int(state.bytes)
    return sum(map(_bytes, vars(state).values())) if hasattr(state, "__dataclass_fields__") else 0


def _training_step(model: nn.Module, task: Task, config: Config) -> Callable[[], None]:
    objective = make_objective(config, task, model)
    optimizer = make_optimizer(model, config.train)
    device = next(model.parameters()).device
    for module in objective.frozen:
        module.to(device)
    batch = tuple(tensor.to(device) for tensor in objective.collate(objective.order(0)))

    def step() -> None:
        model.train()
        with torch.autocast("cuda", torch.bfloat16, enabled=device.type == "cuda"):
            loss = objective.loss(model, batch)
        (loss / objective.count(batch)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
