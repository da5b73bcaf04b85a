"""The gradients of one update: launched kernel by kernel, or replayed from a recording.

    gradients of  sum over the parts of (summed loss of the part) / (tokens of the whole batch)

A small model keeps a GPU waiting, since starting its kernels takes longer than running them. A CUDA graph starts
them all at once. What is recorded is the same work every time, so a model may not look at numbers on the way, and
gradients stay where they are (they are zeroed, not dropped). Dropout draws anew at every replay, by the step's seed.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from qkv.train.batches import Update
from qkv.train.distributed import Group
from qkv.train.objective import Tensors

Key = tuple[tuple[tuple[int, ...], torch.dtype], ...]


def require_one_card(device: torch.device, processes: int) -> None:
    """Refuse to record anywhere but in one process on CUDA."""
    if device.type != "cuda" or processes > 1:
        raise ValueError(f"graphs need one process on cuda, got {processes} on {device.type}")


class Gradients(Protocol):
    """How the gradients of an update come about."""

    keeps_places: bool
    """Whether gradients must stay in the tensors they are in."""

    def add(self, update: Update, tokens: int) -> list[Tensor]:
        """Add the gradients to those of the parameters; gives the loss of each part, not yet waited for."""


class Launched:
    """Forward and backward as they are written, on any number of processes."""

    keeps_places = False

    def __init__(self, objective: nn.Module, group: Group):
        self.objective, self.group = objective, group

    def add(self, update: Update, tokens: int) -> list[Tensor]:
        """Wrapped modules average over processes, hence the factor."""
        lost, counts = [], 0.0 if update.idle else 1.0
        device = self.group.device
        for number, part in enumerate(update.parts):
            tensors = tuple(tensor.to(device) for tensor in part)
            half = torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()
            with self.group.silent(self.objective, quiet=number + 1 < len(update.parts)):
                with half:
                    summed = self.objective(*tensors)
                (summed * (counts * self.group.world / tokens)).backward()
            lost.append(summed.detach())
        return [] if update.idle else lost


@dataclass(frozen=True)
class _Recording:
    """A graph, where its inputs are read and where its loss is written."""

    graph: torch.cuda.CUDAGraph
    inputs: Tensors
    loss: Tensor


class Recorded:
    """Forward and backward recorded once for every shape, by one process on CUDA."""

    keeps_places = True

    def __init__(self, objective: nn.Module, group: Group):
        require_one_card(group.device, group.world)
        self.objective = objective
        self.factor = torch.zeros((), device=group.device)
        self._parameters = [parameter for parameter in objective.parameters() if parameter.requires_grad]
        self._recordings: dict[Key, _Recording] = {}
        self._pool = torch.cuda.graph_pool_handle()
        for parameter in self._parameters:
            parameter.grad = torch.zeros_like(parameter)

    def add(self, update: Update, tokens: int) -> list[Tensor]:
        """Replay, or record what has new shapes; a part of the same shape writes its loss to the same place."""
        self.factor.fill_(1 / tokens)
        return [self._replay(part).clone() for part in update.parts]

    def _replay(self, tensors: Tensors) -> Tensor:
        key = tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors)
        if key not in self._recordings:
            self._recordings[key] = self._record(tensors)
        found = self._recordings[key]
        for place, tensor in zip(found.inputs, tensors, strict=True):
            place.copy_(tensor)
        found.graph.replay()
        return found.loss

    def _record(self, tensors: Tensors) -> _Recording:
        """Once for real, in which kernels are compiled or chosen, then recorded; the gradients are as before."""
        device = self.factor.device
        inputs = tuple(tensor.to(device, copy=True) for tensor in tensors)
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        kept, state = [gradient.clone() for gradient in gradients], torch.cuda.get_rng_state(device)
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            self._compute(inputs)
        torch.cuda.current_stream(device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            loss = self._compute(inputs)
        torch._foreach_copy_(gradients, kept)
        torch.cuda.set_rng_state(state, device)
        return _Recording(graph, inputs, loss)

    def _compute(self, inputs: Tensors) -> Tensor:
        # weights that autocast has made narrow outside of the recording are not those of the next step
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            loss: Tensor = self.objective(*inputs)
        (loss * self.factor).backward()
        return loss.detach()
