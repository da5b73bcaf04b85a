"""Memory, counted without taking any: what weights, training, inference and decoding hold.

The module is run on the meta device, through the kernels that the CPU would use (fused attention
keeps no matrix of weights), which allocates nothing; one that looks at numbers runs for real, on
copies of its weights. Bytes are those of the tensors themselves; what a kernel needs inside for a
moment is not seen.
"""

import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from qkv.cost.meta_kernels import rehearsing
from qkv.cost.meta_run import Play, mode, tensors_in

OPTIMIZERS = {"sgd": 0, "momentum": 1, "adagrad": 1, "rmsprop": 1, "adam": 2, "adamw": 2}
"""How many numbers, as wide as the weight, an optimizer keeps for each weight."""


@dataclass(frozen=True)
class Weights:
    """Bytes that a module holds whatever it is called with; tied weights count once."""

    parameters: int
    buffers: int
    gradients: int
    """Of the parameters that learn."""
    optimizer: int


def weigh(module: nn.Module, optimizer: str = "adam") -> Weights:
    """The bytes of its weights, and of what training keeps beside them."""
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"optimizer {optimizer!r} is not known (there are: {', '.join(OPTIMIZERS)})")
    learning = sum(p.nbytes for p in module.parameters() if p.requires_grad)
    return Weights(
        parameters=sum(p.nbytes for p in module.parameters()),
        buffers=sum(b.nbytes for b in module.buffers()),
        gradients=learning,
        optimizer=OPTIMIZERS[optimizer] * learning,
    )


def saved_bytes(play: Play, sizes: Mapping[str, int]) -> int:
    """What a forward pass in training keeps for the backward, inputs among it, weights not: each storage once."""
    with mode(play.module, training=True), rehearsing(play, sizes) as (weights, tensors), torch.enable_grad():
        own = {_storage(weight) for weight in weights.values()}
        held: dict[Any, Tensor] = {}

        def pack(tensor: Tensor) -> Tensor:
            held.setdefault(_storage(tensor), tensor)
            return tensor

        with saved_tensors_hooks(pack, lambda tensor: tensor):
            out = play.call(weights, tensors)
        total = sum(x.untyped_storage().nbytes() for storage, x in held.items() if storage not in own)
        del out
    return total


def inference_bytes(play: Play, sizes: Mapping[str, int]) -> tuple[int, int | None]:
    """The most that inference holds at once beyond weights and inputs, the result included; and its cache.

    The cache is `past_key_values` in what the module gives, as Hugging Face's models do; None without.
    """
    with rehearsing(play, sizes) as (weights, tensors), torch.no_grad():
        with _Alive((*weights.values(), *tensors)) as alive:
            out = play.call(weights, tensors)
        cache = getattr(out, "past_key_values", None)
        kept = {(_storage(x), x.nbytes) for x in tensors_in(cache)} if cache is not None else None
        del out, cache
    return alive.peak, None if kept is None else sum(size for _, size in kept)


class _Alive(TorchDispatchMode):
    """Follows every storage from its first appearance until nobody holds it."""

    def __init__(self, known: Iterable[Tensor]):
        super().__init__()
        self.now = self.peak = 0
        self.known = {_storage(tensor) for tensor in known}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tensors_in(out) if isinstance(out, tuple | list | Tensor) else []:
            self._meet(tensor)
        self.peak = max(self.peak, self.now)
        return out

    def _meet(self, tensor: Tensor) -> None:
        storage, place = tensor.untyped_storage(), _storage(tensor)
        if place in self.known:
            return
        self.known.add(place)
        size = storage.nbytes()
        self.now += size
        weakref.finalize(storage, self._leave(place, size))

    def _leave(self, place: int, size: int) -> Callable[[], None]:
        def leave() -> None:
            self.now -= size
            self.known.discard(place)

        return leave


def _storage(tensor: Tensor) -> int:
    """Which memory a tensor stands in."""
    return int(tensor.untyped_storage()._cdata)
