"""Processes that share one copy of a model: FSDP2 over the axes `shard` and `sequence`, replicated over `data`.

Each process holds a shard of every parameter, gradient, optimizer state and average. A block is gathered before it runs
and dropped after it. Processes of the axis `sequence` have the same examples, and each computes a part of the tokens.
"""

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from qkv.layers import SequenceModel, parallelize_sequence
from qkv.train.backward import uses_bfloat16
from qkv.train.distributed import ProcessGroup
from qkv.train.parallel.mesh import Mesh
from qkv.train.parallel.sharded_checkpoint import load_sharded, save_sharded
from qkv.train.parallel.units import find_blocks

if TYPE_CHECKING:
    from qkv.train.checkpoint import Checkpoint
    from qkv.train.ema import Weights
    from qkv.train.run import Run

_BLOCK_METHODS = ("step", "start")
"""Methods of blocks that a validation may call instead of `forward`."""


class ShardedGroup(ProcessGroup):
    """Processes of which `shard` * `sequence` share one copy of the model."""

    shares_parameters = True

    def __init__(self, device: torch.device, mesh: Mesh, dtype: str = "auto"):
        super().__init__(device, mesh)
        self._bfloat16 = uses_bfloat16(dtype, self.device)
        kind = self.device.type
        sizes = (mesh.data, mesh.parameter_shards)
        devices = init_device_mesh(kind, sizes, mesh_dim_names=("data", "shards"))
        self._devices = devices if mesh.data > 1 else devices["shards"]
        self._parts = None
        if mesh.sequence > 1:
            named = init_device_mesh(kind, (mesh.batch_shards, mesh.sequence), mesh_dim_names=("examples", "parts"))
            self._parts = named["parts"].get_group()

    def wrap(self, module: nn.Module) -> nn.Module:
        """Shard the module in place, and return it in a root that gathers what is outside of its blocks."""
        if self._parts is not None:
            outermost = next(part for part in module.modules() if isinstance(part, SequenceModel))
            parallelize_sequence(outermost, self._parts)
        # nothing here changes the output of a block in place, which is what torch warns of
        warnings.filterwarnings("ignore", "FSDP2-wrapped module", UserWarning)
        root = _Root(module)
        for block in find_blocks(root).values():
            fully_shard(block, mesh=self._devices, mp_policy=self._precision())
            for name in _BLOCK_METHODS:
                if callable(getattr(block, name, None)):
                    register_fsdp_forward_method(block, name)
        fully_shard(root, mesh=self._devices)
        register_fsdp_forward_method(root, "compute")
        return root

    def no_sync(self, module: nn.Module, *, enabled: bool) -> AbstractContextManager[None]:
        """Keep gradients whole while `enabled`: for all micro-batches but the last."""
        assert isinstance(module, FSDPModule)
        module.set_requires_gradient_sync(not enabled)
        return nullcontext()

    def complete(self, tensor: Tensor) -> Tensor:
        """Return a tensor with the values of all shards."""
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def complete_weights(self, weights: "Weights") -> "Weights | None":
        """Return complete weights on the CPU at rank 0, and None at the others; tensors are gathered one by one."""
        found = {}
        for name in sorted(weights):  # in one order: that of tensors that were read from a file differs
            whole = self.complete(weights[name])
            if self.rank == 0:
                found[name] = whole.cpu()
        return found if self.rank == 0 else None

    def validate(self, module: nn.Module, compute_score: Callable[[], float]) -> float:
        """Return the score; all processes validate the same whole sequences, and gather each block together."""
        assert isinstance(module, _Root)
        try:
            return module.compute(compute_score)
        finally:
            for part in module.modules():
                if isinstance(part, FSDPModule):
                    part.reshard()

    def save_checkpoint(self, run: "Run", step: int, tensors: "dict[str, Weights]", record: dict[str, Any]) -> None:
        """Save the shards of all processes as one checkpoint."""
        save_sharded(self, run, step, tensors, record)

    def load_checkpoint(self, run: "Run", model: nn.Module, optimizer: torch.optim.Optimizer) -> "Checkpoint | None":
        """Return this process's shards of the latest valid checkpoint, of whatever mesh."""
        return load_sharded(self, run, model, optimizer)

    def _precision(self) -> MixedPrecisionPolicy:
        """Return how blocks are gathered: in bfloat16 if autocast computes products in it."""
        if not self._bfloat16:
            return MixedPrecisionPolicy()
        return MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)


class _Root(nn.Module):
    """The module whose `forward` and `compute` gather the parameters outside of blocks."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, *tensors: Tensor) -> Any:
        return self.module(*tensors)

    def compute(self, function: Callable[[], float]) -> float:
        return function()
