"""The processes that train together: one, or those that torchrun started."""

import atexit
import gc
import os
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

TIMEOUT = timedelta(minutes=5)
"""How long a process waits for one that is alive, such as the first while it saves; for a dead one nobody waits."""


def rank() -> int:
    """The number of this process, from 0."""
    return int(os.environ.get("RANK", "0"))


def world() -> int:
    """How many processes train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


class Group:
    """Rank and world from torchrun's environment; alone without one.

    Processes with "cuda" take the card of their number on their machine. A peer that dies closes its connections, which
    ends the collective call of the others with an error, and torchrun ends the job: it never hangs.
    """

    def __init__(self, device: torch.device):
        self.rank = rank()
        self.world = world()
        self.device = device
        if self.world > 1 and device.type == "cuda":
            self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(self.device)
        if self.world > 1 and not dist.is_initialized():
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=TIMEOUT)
            atexit.register(_leave)

    def sum(self, value: float) -> float:
        """The sum of this number over all processes."""
        if self.world == 1:
            return value
        total = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return float(total)

    def any(self, wish: bool) -> bool:
        """Whether one of the processes says yes; the same answer for all."""
        return self.sum(float(wish)) > 0

    def wrap(self, objective: nn.Module) -> nn.Module:
        """The module whose backward averages gradients over all processes."""
        return objective if self.world == 1 else DistributedDataParallel(objective)

    def silent(self, objective: nn.Module, *, quiet: bool) -> AbstractContextManager[None]:
        """While `quiet`, gradients are kept here and not yet averaged."""
        if quiet and isinstance(objective, DistributedDataParallel):
            waiting: AbstractContextManager[None] = objective.no_sync()
            return waiting
        return nullcontext()

    def wait(self) -> None:
        """Until all processes are here."""
        self.sum(0)


def _leave() -> None:
    """Join gloo's threads while Python still stands; one that wants its lock later ends the process with SIGABRT."""
    gc.collect()  # wrapped modules are cycles, and each holds the group
    if dist.is_initialized():
        dist.destroy_process_group()
