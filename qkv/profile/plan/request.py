"""What a plan is asked for: model, batch and mesh, checked against each other."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil

from torch import nn

from qkv.cost.input_spec import Input
from qkv.cost.memory import OPTIMIZERS
from qkv.cost.meta_run import ModuleCall
from qkv.errors import unknown_name_error
from qkv.models import Decoder
from qkv.profile.spec import ProfileTarget
from qkv.train.parallel.mesh import Mesh

PRECISIONS = ("bfloat16", "float32")
OPTIMIZER_OF_SETTING = {"adamw": "adamw", "sgd": "momentum"}
"""Setting `train.optimizer` -> name in `OPTIMIZERS`: the training's sgd has momentum."""


@dataclass(frozen=True)
class TrainingStep:
    """One step of a training on a mesh, as one device runs it."""

    target: ProfileTarget
    mesh: Mesh
    batch: int
    """Examples per step, over all processes."""
    length: int | None
    """Tokens per example; None: the inputs have no named length."""
    sizes: dict[str, int]
    """Sizes of the inputs on one device, by name: its part of the tokens."""
    precision: str
    """bfloat16 (autocast: weights in float32, products in bfloat16), or float32."""
    optimizer: str
    """Name in `qkv.cost.memory.OPTIMIZERS`."""
    accumulation: int
    """Micro-batches per step."""
    real_weights: bool = False
    """Whether the module reads values of tensors, so that it is counted on the CPU, with zeros for weights."""

    @property
    def shards(self) -> int:
        """Processes that share one copy of the parameters (FSDP2): 1 if `shard` is, else both axes but `data`."""
        return self.mesh.shard * self.mesh.sequence if self.mesh.shard > 1 else 1

    @property
    def replicas(self) -> int:
        """Processes that have the same parameters, and add up their gradients."""
        return self.mesh.processes // self.shards

    @property
    def batch_per_device(self) -> int:
        """Examples of one micro-batch on one device."""
        return ceil(self.batch // self.mesh.batch_shards / self.accumulation)

    @property
    def product_bytes(self) -> int:
        """Bytes of a value that a matrix product reads."""
        return 2 if self.precision == "bfloat16" else 4

    @property
    def call(self) -> ModuleCall:
        """The forward pass of one micro-batch on one device."""
        batch = self.batch_per_device
        inputs = tuple(replace(given, shape=(batch, *given.shape[1:])) for given in self.target.inputs)
        return ModuleCall(self.target.module, inputs, self.target.options, self.real_weights)

    @property
    def tokens(self) -> int | None:
        """Tokens per step over all processes; None: the inputs are not tokens."""
        return None if self.length is None else self.batch * self.length


def make_step(
    target: ProfileTarget,
    mesh: Mesh,
    *,
    sizes: Mapping[str, int],
    batch: int | None = None,
    precision: str = "bfloat16",
    optimizer: str = "adamw",
) -> TrainingStep:
    """Check a request and divide it over the mesh; `batch` defaults to one example per copy of the tokens."""
    if precision not in PRECISIONS:
        raise unknown_name_error("precision", precision, PRECISIONS)
    settings = target.settings
    chosen = optimizer if settings is None else OPTIMIZER_OF_SETTING[settings.optimizer]
    if chosen not in OPTIMIZERS:
        raise unknown_name_error("optimizer", chosen, OPTIMIZERS)
    _require_trainable(target, mesh)
    batch = mesh.batch_shards if batch is None else batch
    if batch < 1 or batch % mesh.batch_shards:
        raise ValueError(f"batch={batch} must be divisible by data*shard={mesh.batch_shards}")
    for name, size in sizes.items():
        if size % mesh.sequence:
            raise ValueError(f"sequence={mesh.sequence} must divide {name}={size:,}")
        if target.max_tokens is not None and size > target.max_tokens:
            raise ValueError(
                f"{name}={size:,} exceeds the longest sequence of {target.label}, {target.max_tokens:,}; "
                f"for a preset: --set model.max_length={size}"
            )
    return TrainingStep(
        target=target,
        mesh=mesh,
        batch=batch,
        length=sum(sizes.values()) if sizes and _are_tokens(target.inputs) else None,
        sizes={name: size // mesh.sequence for name, size in sizes.items()},
        precision=precision,
        optimizer=chosen,
        accumulation=1 if settings is None else settings.accumulation_steps,
    )


def _are_tokens(inputs: tuple[Input, ...]) -> bool:
    return all(not given.dtype.is_floating_point for given in inputs)


def _require_trainable(target: ProfileTarget, mesh: Mesh) -> None:
    """Raise for what has nothing to train, or cannot be trained on this mesh."""
    module: nn.Module = target.module
    if not any(p.requires_grad for p in module.parameters()):
        raise ValueError(f"{target.label} has no parameter to train: {type(module).__name__}")
    if target.own_update:
        raise ValueError(f"{target.label} updates its model itself, without an optimizer, in one process: no plan")
    if mesh.sequence > 1 and not isinstance(module, Decoder):
        raise ValueError(
            f"sequence={mesh.sequence} splits the tokens of a decoder, but {target.label} is a "
            f"{type(module).__name__}; use data and shard"
        )
    for given in target.inputs:
        if not given.shape or given.shape[0] != 1:
            raise ValueError(f"input {given} must have a first axis of 1, which becomes the batch")
