"""The gate: what comes into a mechanism has the right rank, sizes and types, or the error says why not.

Nothing broadcasts by accident, and nothing is silently ignored.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from qkv.attention.base import Attention

# what a kind does not accept -> what to use instead
_INSTEAD = {
    "pairs": "a (batch, keys) padding mask and causal=True, or the kinds softmax and additive",
    "bias": "decay= (positions: alibi), or the kinds softmax and additive",
    "decay": "bias= (positions: alibi, t5, shaw)",
}


@dataclass(frozen=True)
class Extras:
    """What modifies the weights, beside q and k."""

    causal: bool = False
    mask: Tensor | None = None
    bias: Tensor | None = None
    decay: Tensor | None = None


def check_inputs(mechanism: "Attention", q: Tensor, k: Tensor, v: Tensor | None, extras: Extras, past: int = 0) -> None:
    """Raise on the first thing that does not fit; `past` is how many keys of a state come before `k`."""
    _check_tensors(q, k, v)
    queries, keys = q.shape[2], k.shape[2]
    if extras.causal and queries != keys:
        raise ValueError(
            f"causal=True needs as many queries as keys, got {queries} queries and {keys} keys; "
            "to continue a sequence use step(q, k, v, state)"
        )
    if extras.mask is not None:
        _check_mask(mechanism, extras.mask, q, keys)
    if extras.bias is not None:
        _check_bias(mechanism, extras.bias, q, past + keys)
    if extras.decay is not None:
        _check_decay(mechanism, extras, q)


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
        raise ValueError("q and k have key_dim 0: there is nothing to compare")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(f"q has {q.shape[1]} heads and k has {k.shape[1]}: the heads of k must divide those of q")
    if v is not None and v.shape[1:3] != k.shape[1:3]:
        raise ValueError(
            f"v has (heads, keys) {tuple(v.shape[1:3])}, but k has {tuple(k.shape[1:3])}; there is one value per key"
        )


def _check_mask(mechanism: "Attention", mask: Tensor, q: Tensor, keys: int) -> None:
    batch, heads, queries, _ = q.shape
    if not isinstance(mask, Tensor):
        raise TypeError(f"mask must be a bool tensor, got {type(mask).__name__}")
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be bool (True = attend), got {mask.dtype}; a float added to the scores is bias=")
    _check_device("mask", mask, q)
    if mask.shape == (batch, keys):
        return
    _refuse_unless(mechanism, "pairs", mask.dim() == 4, f"a mask of shape {tuple(mask.shape)}")
    if mask.dim() == 4 and _fits(mask, ((1, batch), (1, heads), (queries,), (keys,))):
        return
    pairs = f" or (1|{batch}, 1|{heads}, {queries}, {keys})" if "pairs" in mechanism.accepts else ""
    raise ValueError(f"mask must have shape (batch, keys) = ({batch}, {keys}){pairs}, got {tuple(mask.shape)}")


def _check_bias(mechanism: "Attention", bias: Tensor, q: Tensor, keys: int) -> None:
    batch, heads, queries, _ = q.shape
    _refuse_unless(mechanism, "bias", True, "a score bias")
    if not isinstance(bias, Tensor) or not bias.is_floating_point():
        what = bias.dtype if isinstance(bias, Tensor) else type(bias).__name__
        raise TypeError(f"bias must be a floating-point tensor, got {what}; a bool tensor is mask=")
    _check_device("bias", bias, q)
    if bias.dim() != 4 or not _fits(bias, ((1, batch), (heads,), (queries,), (keys,))):
        raise ValueError(
            f"bias must have shape (batch or 1, heads, queries, keys) = "
            f"(1|{batch}, {heads}, {queries}, {keys}), got {tuple(bias.shape)}"
        )


def _check_decay(mechanism: "Attention", extras: Extras, q: Tensor) -> None:
    _refuse_unless(mechanism, "decay", True, "a decay")
    decay, heads = extras.decay, q.shape[1]
    if not isinstance(decay, Tensor) or not decay.is_floating_point() or decay.shape != (heads,):
        what = f"shape {tuple(decay.shape)} of {decay.dtype}" if isinstance(decay, Tensor) else type(decay).__name__
        raise ValueError(f"decay must be a floating-point tensor of shape (heads,) = ({heads},), got {what}")
    _check_device("decay", decay, q)
    _check_rates(decay)
    if not extras.causal:
        raise ValueError("decay needs causal=True: it fades the past, and without an order there is none")


def _check_rates(decay: Tensor) -> None:
    """Of numbers that can be looked at for nothing: not on a GPU, which would be waited for, nor while torch traces."""
    plain = type(decay) in (Tensor, nn.Parameter) and decay.device.type == "cpu"
    if not plain or torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return
    rates = decay.tolist()
    if not all(rate >= 0 for rate in rates):  # NaN is not, either
        raise ValueError(f"decay must be at least 0 for every head, got {rates}")


def _check_device(name: str, x: Tensor, q: Tensor) -> None:
    if x.device != q.device:
        raise ValueError(f"{name} is on {x.device}, but q is on {q.device}; they must agree")


def _refuse_unless(mechanism: "Attention", ability: str, given: bool, what: str) -> None:
    if given and ability not in mechanism.accepts:
        raise ValueError(f"attention kind {mechanism.kind!r} cannot take {what}; use {_INSTEAD[ability]}")


def _fits(x: Tensor, sizes: tuple[tuple[int, ...], ...]) -> bool:
    return all(actual in allowed for actual, allowed in zip(x.shape, sizes, strict=True))
