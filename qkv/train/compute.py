"""Device and execution options of a training."""

import math
from dataclasses import dataclass

import torch

from qkv.train.backward import require_single_gpu
from qkv.train.distributed import get_world_size
from qkv.train.parallel.mesh import Mesh, choose_mesh

LOWEST_STALL_LIMIT = 5
"""Seconds: processes publish their progress once a second."""


@dataclass(frozen=True)
class Compute:
    """Device and execution options; on a CPU, results do not depend on `workers`."""

    device: str = "cpu"
    workers: int = 0
    """Processes that collate batches in advance."""
    compile: bool = False
    """Whether to torch.compile the model."""
    graphs: bool = False
    """Whether to replay CUDA graphs, one per shape; for a small model in one process on CUDA."""
    mesh: Mesh | None = None
    """Arrangement of the processes; None: each of them has the whole model and other examples."""

    stall_limit: float = 40.0
    """With several processes: seconds without progress after which the training ends (10 times the longest step, if
    that is more); 0: no limit."""

    def __post_init__(self) -> None:
        mesh = choose_mesh(self.mesh, get_world_size())
        if not (self.stall_limit == 0 or LOWEST_STALL_LIMIT <= self.stall_limit < math.inf):
            raise ValueError(f"stall_limit must be 0 or at least {LOWEST_STALL_LIMIT} seconds, got {self.stall_limit}")
        if self.workers < 0:
            raise ValueError(f"workers must be 0 or more, got {self.workers}")
        if self.graphs:
            require_single_gpu(torch.device(self.device), get_world_size())
        if self.compile and mesh.parameter_shards > 1:
            raise ValueError(f"compile needs a process to have the whole model, got mesh {mesh}; use mesh axis data")
