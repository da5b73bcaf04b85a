"""The processes of a training: one, or the group that torchrun started, each with the whole model (DDP)."""

import atexit
import gc
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from qkv.errors import QkvError
from qkv.train.failures import Pulse, is_lost_connection
from qkv.train.parallel.mesh import Mesh, choose_mesh

if TYPE_CHECKING:
    from qkv.train.checkpoint import Checkpoint
    from qkv.train.ema import Weights
    from qkv.train.run import Run

TIMEOUT = timedelta(minutes=5)
"""Time limit of a wait for another process, such as rank 0 while it saves; if it dies, the wait ends at once."""


def get_rank() -> int:
    """Return the rank of this process, from 0."""
    return int(os.environ.get("RANK", "0"))


def get_world_size() -> int:
    """Return the number of processes that train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_restarted() -> bool:
    """Return whether torchrun started this process again after a failure (`--max-restarts`)."""
    return _restarts() > 0


def may_restart() -> bool:
    """Return whether torchrun would start this process again after a failure."""
    return int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0


@contextmanager
def lost_process_errors() -> Iterator[None]:
    """Turn the error of a connection to a process that has ended into a QkvError."""
    try:
        yield
    except RuntimeError as error:
        if not is_lost_connection(error):
            raise
        raise QkvError(
            f"rank {get_rank()}: another process of this training ended; --resume continues from the last checkpoint"
        ) from error


class ProcessGroup:
    """Rank and world size from torchrun's environment; rank 0 of 1 without torchrun.

    With "cuda" each process uses the GPU of its local rank. A process that dies closes its connections, which ends the
    collective calls of the others with an error, and torchrun ends the job: it never hangs.
    """

    shares_parameters = False
    """Whether several processes share one copy of the model; otherwise each has its own."""

    def __init__(self, device: torch.device, mesh: Mesh | None = None):
        self.rank = get_rank()
        self.world_size = get_world_size()
        self.mesh = choose_mesh(mesh, self.world_size)
        self.coordinates = self.mesh.coordinates(self.rank)
        self.device = device
        self.pulse = Pulse()
        if self.world_size > 1 and device.type == "cuda":
            self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(self.device)
        if self.world_size > 1 and not dist.is_initialized():
            _init_process_group("nccl" if device.type == "cuda" else "gloo")
            atexit.register(_destroy_process_group)

    def sum(self, value: float) -> float:
        """Return the sum of a value over all processes (all-reduce)."""
        if self.world_size == 1:
            return value
        total = torch.tensor(value, dtype=torch.float64, device=self.device)
        with self.pulse.collective():
            dist.all_reduce(total)
            return float(total)

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set in any process; all processes get the same result."""
        return self.sum(float(flag)) > 0

    def wrap(self, module: nn.Module) -> nn.Module:
        """Return the module in DistributedDataParallel, whose backward averages gradients over all processes."""
        if self.world_size == 1:
            return module
        # a block without a feed-forward layer does not use the norm before it
        layers = [part.feed_forward for part in module.modules() if hasattr(part, "feed_forward")]
        unused = any(not list(layer.parameters()) for layer in layers if isinstance(layer, nn.Module))
        unused |= any(getattr(part, "has_unused_parameters", False) for part in module.modules())
        return DistributedDataParallel(module, find_unused_parameters=unused)

    def no_sync(self, module: nn.Module, *, enabled: bool) -> AbstractContextManager[None]:
        """Skip the all-reduce of gradients while `enabled`: for all micro-batches but the last."""
        if enabled and isinstance(module, DistributedDataParallel):
            context: AbstractContextManager[None] = module.no_sync()
            return context
        return nullcontext()

    def complete(self, tensor: Tensor) -> Tensor:
        """Return a tensor with all of its values, where this process may hold a shard of it."""
        return tensor

    def complete_weights(self, weights: "Weights") -> "Weights | None":
        """Return complete weights at rank 0, and None at the others; all processes must call this."""
        return weights if self.rank == 0 else None

    def validate(self, module: nn.Module, compute_score: Callable[[], float]) -> float:
        """Return the score that a validation of the model in `module` computes."""
        return compute_score()

    def save_checkpoint(self, run: "Run", step: int, tensors: "dict[str, Weights]", record: dict[str, Any]) -> None:
        """Save a checkpoint of the run; all processes must call this."""
        if self.rank == 0:
            run.save_checkpoint(step, tensors, record)

    def load_checkpoint(self, run: "Run", model: nn.Module, optimizer: torch.optim.Optimizer) -> "Checkpoint | None":
        """Return the latest valid checkpoint, with what this process holds of the model and its optimizer state."""
        return run.load_checkpoint()

    def barrier(self) -> None:
        """Wait for all processes."""
        self.sum(0)


def make_process_group(device: torch.device, mesh: Mesh | None = None, dtype: str = "auto") -> ProcessGroup:
    """Return the processes of a training, arranged in a mesh (default: each has the whole model).

    `dtype` is the setting of that name: in which type processes that share parameters gather those of a block.
    """
    if mesh is None or mesh.parameter_shards == 1:
        return ProcessGroup(device, mesh)
    from qkv.train.parallel.sharded_group import ShardedGroup  # noqa: PLC0415 - half a second of imports

    return ShardedGroup(device, mesh, dtype)


def _init_process_group(backend: str) -> None:
    """Connect to the other processes.

    torchrun keeps its store over restarts, with the addresses of the processes that have ended. So each restart has its
    own keys.
    """
    store, rank, world_size = next(dist.rendezvous("env://", timeout=TIMEOUT))  # type: ignore[attr-defined]
    store = dist.PrefixStore(f"restart-{_restarts()}", store)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=TIMEOUT)


def _restarts() -> int:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def _destroy_process_group() -> None:
    """Join gloo's threads before Python shuts down: one that needs the interpreter later aborts the process."""
    gc.collect()  # wrapped modules are in reference cycles, and each holds the group
    if dist.is_initialized():
        with suppress(RuntimeError):  # another process has ended
            dist.destroy_process_group()
