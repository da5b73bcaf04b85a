"""Memory of weights, training, inference and decoding, counted without allocating it.

The module runs on the meta device with the kernels that the CPU would use (fused attention keeps no
matrix of weights). A module that reads tensor values runs on the CPU, on copies of its weights. Bytes
are those of tensors; temporary memory inside a kernel is not visible.
"""

import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from qkv.cost.meta_run import MetaAutocast, ModuleCall, dry_run, module_mode, tensors_in

OPTIMIZERS = {"sgd": 0, "momentum": 1, "adagrad": 1, "rmsprop": 1, "adam": 2, "adamw": 2}
"""Optimizer -> values of state per weight, in the dtype of the weight."""


@dataclass(frozen=True)
class WeightBytes:
    """Bytes that a module holds independent of its inputs; tied weights count once."""

    parameters: int
    buffers: int
    gradients: int
    """Gradients of the parameters that require them."""
    optimizer: int


def weight_bytes(module: nn.Module, optimizer: str = "adam") -> WeightBytes:
    """Return the bytes of weights, gradients and optimizer state."""
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"optimizer {optimizer!r} must be one of {', '.join(OPTIMIZERS)}")
    trainable = sum(p.nbytes for p in module.parameters() if p.requires_grad)
    return WeightBytes(
        parameters=sum(p.nbytes for p in module.parameters()),
        buffers=sum(b.nbytes for b in module.buffers()),
        gradients=trainable,
        optimizer=OPTIMIZERS[optimizer] * trainable,
    )


@dataclass(frozen=True)
class SavedForBackward:
    """What a training forward pass leaves for its backward pass."""

    activations: int
    """Bytes: inputs included, weights not, each storage once."""
    weight_copies: int
    """Bytes of weights in half precision, under autocast."""
    outputs: int
    """Values in the results, floating-point only."""


def saved_for_backward(
    call: ModuleCall, sizes: Mapping[str, int], autocast: MetaAutocast | None = None
) -> SavedForBackward:
    """Run a training forward pass and return what it saves for backward."""
    with module_mode(call.module, training=True), dry_run(call, sizes) as (weights, tensors), torch.enable_grad():
        own = {_storage_id(weight) for weight in weights.values()}
        held: dict[Any, Tensor] = {}

        def pack(tensor: Tensor) -> Tensor:
            held.setdefault(_storage_id(tensor), tensor)
            return tensor

        with saved_tensors_hooks(pack, lambda tensor: tensor), autocast or nullcontext():
            out = call.run(weights, tensors)
        copies = {_storage_id(x): x.nbytes for x in autocast.copies()} if autocast else {}
        known = own | copies.keys()
        total = sum(x.untyped_storage().nbytes() for storage, x in held.items() if storage not in known)
        outputs = sum(x.numel() for x in tensors_in(out) if x.is_floating_point())
        del out
    return SavedForBackward(total, sum(copies.values()), outputs)


def saved_bytes(call: ModuleCall, sizes: Mapping[str, int]) -> int:
    """Return the bytes a training forward pass saves for backward: inputs included, weights not, each storage once."""
    return saved_for_backward(call, sizes).activations


def inference_bytes(call: ModuleCall, sizes: Mapping[str, int]) -> tuple[int, int | None]:
    """Return the peak bytes of inference beyond weights and inputs (result included), and those of its KV cache.

    The cache is `past_key_values` of the output, as in Hugging Face models; None if there is no such field.
    """
    with dry_run(call, sizes) as (weights, tensors), torch.no_grad():
        with _LiveStorages((*weights.values(), *tensors)) as live:
            out = call.run(weights, tensors)
        cache = getattr(out, "past_key_values", None)
        cached = None if cache is None else {(_storage_id(x), x.nbytes) for x in tensors_in(cache)}
        del out, cache
    return live.peak, None if cached is None else sum(size for _, size in cached)


class _LiveStorages(TorchDispatchMode):
    """Tracks the bytes of every storage from its creation until it is freed."""

    def __init__(self, known: Iterable[Tensor]):
        super().__init__()
        self.now = self.peak = 0
        self.known = {_storage_id(tensor) for tensor in known}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tensors_in(out) if isinstance(out, tuple | list | Tensor) else []:
            self._track(tensor)
        self.peak = max(self.peak, self.now)
        return out

    def _track(self, tensor: Tensor) -> None:
        storage, key = tensor.untyped_storage(), _storage_id(tensor)
        if key in self.known:
            return
        self.known.add(key)
        size = storage.nbytes()
        self.now += size
        weakref.finalize(storage, self._on_free(key, size))

    def _on_free(self, key: int, size: int) -> Callable[[], None]:
        def free() -> None:
            self.now -= size
            self.known.discard(key)

        return free


def _storage_id(tensor: Tensor) -> int:
    """Return an identifier of the memory behind a tensor."""
    return int(tensor.untyped_storage()._cdata)
