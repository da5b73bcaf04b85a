"""The gradients of one training step: eager, or replayed from a CUDA graph.

    gradients of  sum over micro-batches of (summed loss of the micro-batch) / (tokens of the whole batch)

For a small model, launching kernels takes longer than running them. A CUDA graph launches all of them at once. It
repeats the same work at every replay, so the model must not read values on the host, and gradients must stay in the
same tensors (zeroed, not set to None). Dropout differs at every replay, by the seed of the step.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from qkv.layers import DecoderBlock, EncoderBlock
from qkv.train.batches import TrainBatch
from qkv.train.distributed import ProcessGroup
from qkv.train.objective import Tensors
from qkv.train.settings import Settings

ShapeKey = tuple[tuple[tuple[int, ...], torch.dtype], ...]


def require_single_gpu(device: torch.device, processes: int) -> None:
    """Raise unless there is one process on CUDA, which CUDA graphs need."""
    if device.type != "cuda" or processes > 1:
        raise ValueError(f"graphs need one process on cuda, got {processes} on {device.type}")


def uses_bfloat16(dtype: str, device: torch.device) -> bool:
    """Return whether the setting `dtype` means autocast to bfloat16 on this device; raise if it cannot have it."""
    if dtype == "bfloat16" and device.type != "cuda":
        raise ValueError(f"train.dtype=bfloat16 needs a CUDA device, got {device.type}; use float32 or auto")
    return device.type == "cuda" and dtype != "float32"


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the blocks that recomputation runs again, or raise if there is none."""
    blocks: list[nn.Module] = [part for part in model.modules() if isinstance(part, EncoderBlock | DecoderBlock)]
    if not blocks:
        raise ValueError(
            f"train.recompute=true runs Transformer blocks again, but {type(model).__name__} has none; leave it out"
        )
    return blocks


def recompute_blocks(model: nn.Module, *, compiled: bool = False) -> None:
    """Make each block run again in the backward pass of a training, in place: of its values only inputs are kept.

    Gradients stay the same, also with dropout, whose random state is restored. `compiled` is whether the model will be
    compiled or captured in CUDA graphs, which cannot restore it.
    """
    blocks = find_blocks(model)
    if compiled:
        raise ValueError("train.recompute=true needs a model that runs as it is; leave out --compile and --graphs")
    for block in blocks:
        if "forward" not in vars(block):  # of another training of this model
            block.forward = partial(_run_again, block.forward)


def _run_again(forward: Any, *args: Any, **options: Any) -> Any:
    """Call the `forward` method of a block; in a training without keeping its values."""
    # partial and method are copied with their module, where a closure would keep the first one
    if not (forward.__self__.training and torch.is_grad_enabled()):
        return forward(*args, **options)
    return checkpoint(forward, *args, use_reentrant=False, **options)


def require_supported(settings: Settings, model: nn.Module, device: str) -> None:
    """Raise for settings of the backward pass that this model or device cannot have."""
    uses_bfloat16(settings.dtype, torch.device(device))
    if settings.recompute:
        find_blocks(model)


class Backward(Protocol):
    """The computation of the gradients of a step."""

    keeps_grad_tensors: bool
    """Whether gradients must stay in the same tensors."""

    def accumulate(self, batch: TrainBatch, tokens: int) -> list[Tensor]:
        """Add the gradients of a batch to `.grad`; return the loss of each micro-batch without waiting for the GPU."""


class EagerBackward:
    """Ordinary forward and backward, on any number of processes."""

    keeps_grad_tensors = False

    def __init__(self, loss_module: nn.Module, group: ProcessGroup, dtype: str = "auto"):
        self.loss_module, self.group = loss_module, group
        self.bfloat16 = uses_bfloat16(dtype, group.device)

    def accumulate(self, batch: TrainBatch, tokens: int) -> list[Tensor]:
        """Add the gradients of a batch; DDP and FSDP average over processes, so the loss is multiplied."""
        losses, device, counted = [], self.group.device, len(batch.counted)
        for number, micro_batch in enumerate(batch.micro_batches):
            tensors = tuple(tensor.to(device) for tensor in micro_batch)
            autocast = torch.autocast("cuda", torch.bfloat16) if self.bfloat16 else nullcontext()
            last = number + 1 == len(batch.micro_batches)
            with self.group.no_sync(self.loss_module, enabled=not last):
                with autocast:
                    loss = self.loss_module(*tensors)
                self.group.pulse.tick()
                weight = 1.0 if number < counted else 0.0
                waits = last or self.group.shares_parameters  # gradients are averaged, or parameters gathered
                with self.group.pulse.collective() if waits else nullcontext():
                    (loss * (weight * self.group.world_size / tokens)).backward()
            losses.append(loss.detach())
        return losses[:counted]


@dataclass(frozen=True)
class _CapturedGraph:
    """A CUDA graph with its input and output tensors."""

    graph: torch.cuda.CUDAGraph
    inputs: Tensors
    loss: Tensor


class CudaGraphBackward:
    """Forward and backward, captured once per shape, on one process with CUDA."""

    keeps_grad_tensors = True

    def __init__(self, loss_module: nn.Module, group: ProcessGroup, dtype: str = "auto"):
        require_single_gpu(group.device, group.world_size)
        self.bfloat16 = uses_bfloat16(dtype, group.device)
        self.loss_module = loss_module
        self.factor = torch.zeros((), device=group.device)
        self._parameters = [parameter for parameter in loss_module.parameters() if parameter.requires_grad]
        self._graphs: dict[ShapeKey, _CapturedGraph] = {}
        self._pool = torch.cuda.graph_pool_handle()
        for parameter in self._parameters:
            parameter.grad = torch.zeros_like(parameter)

    def accumulate(self, batch: TrainBatch, tokens: int) -> list[Tensor]:
        """Replay the graph of each micro-batch's shape; its loss is copied, since the next replay overwrites it."""
        self.factor.fill_(1 / tokens)
        return [self._replay(micro_batch).clone() for micro_batch in batch.micro_batches]

    def _replay(self, tensors: Tensors) -> Tensor:
        key = tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors)
        if key not in self._graphs:
            self._graphs[key] = self._capture(tensors)
        captured = self._graphs[key]
        for target, tensor in zip(captured.inputs, tensors, strict=True):
            target.copy_(tensor)
        captured.graph.replay()
        return captured.loss

    def _capture(self, tensors: Tensors) -> _CapturedGraph:
        """Run once eagerly, which compiles and selects kernels, then capture; gradients are left as they were."""
        device = self.factor.device
        inputs = tuple(tensor.to(device, copy=True) for tensor in tensors)
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        saved, rng_state = [gradient.clone() for gradient in gradients], torch.cuda.get_rng_state(device)
        side_stream = torch.cuda.Stream(device)
        side_stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side_stream):
            self._compute(inputs)
        torch.cuda.current_stream(device).wait_stream(side_stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            loss = self._compute(inputs)
        torch._foreach_copy_(gradients, saved)
        torch.cuda.set_rng_state(rng_state, device)
        return _CapturedGraph(graph, inputs, loss)

    def _compute(self, inputs: Tensors) -> Tensor:
        # no cast cache: weights cast outside the graph would be stale at the next step
        with torch.autocast("cuda", torch.bfloat16, enabled=self.bfloat16, cache_enabled=False):
            loss: Tensor = self.loss_module(*inputs)
        (loss * self.factor).backward()
        return loss.detach()
