"""Validation of a mechanism's inputs: rank, sizes, dtypes and devices.

Nothing broadcasts by accident, and nothing is silently ignored.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from qkv.attention.base import Attention

# capability that a kind lacks -> what to use instead
_ALTERNATIVES = {
    "pairs": "a (batch, keys) padding mask and causal=True, or the kinds softmax and additive",
    "bias": "decay= (positions: alibi), or the kinds softmax and additive",
    "decay": "bias= (positions: alibi, t5, shaw)",
}


@dataclass(frozen=True)
class Modifiers:
    """Arguments that modify the weights, in addition to q and k."""

    causal: bool = False
    mask: Tensor | None = None
    bias: Tensor | None = None
    decay: Tensor | None = None


def check_inputs(
    mechanism: "Attention", q: Tensor, k: Tensor, v: Tensor | None, modifiers: Modifiers, past: int = 0
) -> None:
    """Raise on the first invalid input; `past` is the number of cached keys before `k`."""
    _check_tensors(q, k, v)
    queries, keys = q.shape[2], k.shape[2]
    if modifiers.causal and queries != keys:
        raise ValueError(
            f"causal=True needs as many queries as keys, got {queries} queries and {keys} keys; "
            "to continue a sequence use step(q, k, v, state)"
        )
    if modifiers.mask is not None:
        _check_mask(mechanism, modifiers.mask, q, keys)
    if modifiers.bias is not None:
        _check_bias(mechanism, modifiers.bias, q, past + keys)
    if modifiers.decay is not None:
        _check_decay(mechanism, modifiers, q)


def _check_tensors(q: Tensor, k: Tensor, v: Tensor | None) -> None:
    given = {"q": q, "k": k} if v is None else {"q": q, "k": k, "v": v}
    for name, x in given.items():
        if not isinstance(x, Tensor) or not x.is_floating_point():
            what = f"{x.dtype} tensor" if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(f"{name} must be a floating-point tensor, got {what}")
        if x.dim() != 4:
            raise ValueError(f"{name} must have 4 axes (batch, heads, time, dim), got shape {tuple(x.shape)}")
        if x.dtype != q.dtype or x.device != q.device:
            raise TypeError(f"{name} is {x.dtype} on {x.device}, but q is {q.dtype} on {q.device}; they must agree")
        if x.shape[0] != q.shape[0]:
            raise ValueError(f"{name} has batch {x.shape[0]}, but q has batch {q.shape[0]}")
    if q.shape[3] != k.shape[3]:
        raise ValueError(f"q has key_dim {q.shape[3]}, but k has key_dim {k.shape[3]}")
    if q.shape[3] == 0:
        raise ValueError("q and k have key_dim 0, which must be at least 1")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(f"q has {q.shape[1]} heads and k has {k.shape[1]}: the heads of k must divide those of q")
    if v is not None and v.shape[1:3] != k.shape[1:3]:
        raise ValueError(f"v has (heads, keys) {tuple(v.shape[1:3])}, but k has {tuple(k.shape[1:3])}; they must agree")


def _check_mask(mechanism: "Attention", mask: Tensor, q: Tensor, keys: int) -> None:
    batch, heads, queries, _ = q.shape
    if not isinstance(mask, Tensor):
        raise TypeError(f"mask must be a bool tensor, got {type(mask).__name__}")
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be bool (True = attend), got {mask.dtype}; a float added to the scores is bias=")
    _check_device("mask", mask, q)
    if mask.shape == (batch, keys):
        return
    if mask.dim() == 4:
        _require_capability(mechanism, "pairs", f"a mask of shape {tuple(mask.shape)}")
    if mask.dim() == 4 and _fits(mask, ((1, batch), (1, heads), (queries,), (keys,))):
        return
    pairs = f" or (1|{batch}, 1|{heads}, {queries}, {keys})" if "pairs" in mechanism.accepts else ""
    raise ValueError(f"mask must have shape (batch, keys) = ({batch}, {keys}){pairs}, got {tuple(mask.shape)}")


def _check_bias(mechanism: "Attention", bias: Tensor, q: Tensor, keys: int) -> None:
    batch, heads, queries, _ = q.shape
    _require_capability(mechanism, "bias", "a score bias")
    if not isinstance(bias, Tensor) or not bias.is_floating_point():
        what = bias.dtype if isinstance(bias, Tensor) else type(bias).__name__
        raise TypeError(f"bias must be a floating-point tensor, got {what}; a bool tensor is mask=")
    _check_device("bias", bias, q)
    if bias.dim() != 4 or not _fits(bias, ((1, batch), (heads,), (queries,), (keys,))):
        raise ValueError(
            f"bias must have shape (batch or 1, heads, queries, keys) = "
            f"(1|{batch}, {heads}, {queries}, {keys}), got {tuple(bias.shape)}"
        )


def _check_decay(mechanism: "Attention", modifiers: Modifiers, q: Tensor) -> None:
    _require_capability(mechanism, "decay", "a decay")
    decay, heads = modifiers.decay, q.shape[1]
    if not isinstance(decay, Tensor) or not decay.is_floating_point() or decay.shape != (heads,):
        what = f"shape {tuple(decay.shape)} of {decay.dtype}" if isinstance(decay, Tensor) else type(decay).__name__
        raise ValueError(f"decay must be a floating-point tensor of shape (heads,) = ({heads},), got {what}")
    _check_device("decay", decay, q)
    _check_rates(decay)
    if not modifiers.causal:
        raise ValueError("decay needs causal=True: it reduces the weight of past keys")


def _check_rates(decay: Tensor) -> None:
    """Check the values only where they can be read without a sync: CPU, eager, no functorch."""
    readable = type(decay) in (Tensor, nn.Parameter) and decay.device.type == "cpu"
    if not readable or torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return
    rates = decay.tolist()
    if not all(rate >= 0 for rate in rates):  # also false for NaN
        raise ValueError(f"decay must be at least 0 for every head, got {rates}")


def _check_device(name: str, x: Tensor, q: Tensor) -> None:
    if x.device != q.device:
        raise ValueError(f"{name} is on {x.device}, but q is on {q.device}; they must agree")


def _require_capability(mechanism: "Attention", capability: str, argument: str) -> None:
    if capability not in mechanism.accepts:
        raise ValueError(f"attention kind {mechanism.kind!r} cannot take {argument}; use {_ALTERNATIVES[capability]}")


def _fits(x: Tensor, sizes: tuple[tuple[int, ...], ...]) -> bool:
    return all(actual in allowed for actual, allowed in zip(x.shape, sizes, strict=True))
