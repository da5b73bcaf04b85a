"""Validation of a mechanism's inputs: rank, sizes, dtypes and devices.

Nothing broadcasts by accident, and nothing is silently ignored.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qkv.attention.internal.gates import document_index
from qkv.attention.internal.masking import hidden_keys
from qkv.attention.internal.nonfinite import is_readable

if TYPE_CHECKING:
    from qkv.attention.base import Attention

# capability that a kind lacks -> what to use instead
_ALTERNATIVES = {
    "pairs": "a (batch, keys) padding mask and causal=True, or the kinds softmax and additive",
    "bias": "decay= (positions: alibi), or the kinds softmax and additive",
    "decay": "bias= (positions: alibi, t5, shaw)",
    "gate": "bias=, or a kind that accepts gates, such as linear, taylor and softmax",
    "channel_gate": "a gate per token, decay= of shape (batch, heads, keys), or the kinds linear and delta",
    "beta": "the kind delta",
}


@dataclass(frozen=True)
class Modifiers:
    """Arguments that modify the weights, in addition to q and k."""

    causal: bool = False
    mask: Tensor | None = None
    bias: Tensor | None = None
    decay: Tensor | None = None
    beta: Tensor | None = None
    starts: Tensor | None = None

    @property
    def gated(self) -> bool:
        """Whether `decay` is a gate: it has rates per token, not one per head."""
        return self.decay is not None and self.decay.dim() > 1

    @property
    def channel_gated(self) -> bool:
        """Whether `decay` is a gate with a rate per channel."""
        return self.decay is not None and self.decay.dim() == 4

    @property
    def gate_heads(self) -> int:
        """Heads of the gate; 0 without one."""
        return self.decay.shape[1] if self.decay is not None and self.gated else 0

    @property
    def documents(self) -> Tensor | None:
        """Index of each key's document: (batch, keys)."""
        return None if self.starts is None else document_index(self.starts)


def check_inputs(
    mechanism: "Attention", q: Tensor, k: Tensor, v: Tensor | None, modifiers: Modifiers, past: int = 0
) -> None:
    """Raise on the first invalid input; `past` is the number of cached keys before `k`."""
    _check_tensors(q, k, v)
    queries, keys = q.shape[2], k.shape[2]
    if mechanism.causal_only and not modifiers.causal:
        raise ValueError(f"attention kind {mechanism.kind!r} needs causal=True: it reads a state of past keys")
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
        _check_decay(mechanism, modifiers, q, k)
    if modifiers.beta is not None:
        _check_beta(mechanism, modifiers, q, k)
    if modifiers.starts is not None:
        _check_starts(modifiers, q, keys)


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


def _check_decay(mechanism: "Attention", modifiers: Modifiers, q: Tensor, k: Tensor) -> None:
    """Check a rate per head, or a gate: a rate per token, or per token and channel."""
    decay, heads = modifiers.decay, q.shape[1]
    axes = decay.dim() if isinstance(decay, Tensor) else 1
    capability, argument = {3: ("gate", "a gate per token"), 4: ("channel_gate", "a gate per channel")}.get(
        axes, ("decay", "a decay")
    )
    _require_capability(mechanism, capability, argument)
    _check_floating(
        "decay",
        decay,
        {
            "(batch, heads, keys)": (q.shape[0], _head_counts(q, k), k.shape[2]),
            "(batch, heads, keys, key_dim)": (q.shape[0], _head_counts(q, k), *k.shape[2:]),
            "(heads,)": (heads,),
        },
        q,
    )
    assert isinstance(decay, Tensor)
    if axes > 1:
        _check_tokens("decay", decay, modifiers.mask, torch.inf, "at least 0")
    elif is_readable(decay) and not all(rate >= 0 for rate in decay.tolist()):  # also false for NaN
        raise ValueError(f"decay must be at least 0 for every head, got {decay.tolist()}")
    if not modifiers.causal:
        raise ValueError("decay needs causal=True: it reduces the weight of past keys")


def _check_beta(mechanism: "Attention", modifiers: Modifiers, q: Tensor, k: Tensor) -> None:
    _require_capability(mechanism, "beta", "a beta")
    beta = modifiers.beta
    _check_floating("beta", beta, {"(batch, heads, keys)": (q.shape[0], _head_counts(q, k), k.shape[2])}, q)
    assert isinstance(beta, Tensor)
    _check_tokens("beta", beta, modifiers.mask, 2.0, "in 0..2")


def _check_starts(modifiers: Modifiers, q: Tensor, keys: int) -> None:
    starts, expected = modifiers.starts, (q.shape[0], keys)
    if not isinstance(starts, Tensor) or starts.dtype != torch.bool or starts.shape != expected:
        raise ValueError(
            f"starts must be a bool tensor of shape (batch, keys) = {expected}, True at the first token of a document, "
            f"got {_describe(starts)}"
        )
    _check_device("starts", starts, q)
    if not modifiers.causal:
        raise ValueError("starts needs causal=True: without it, give each document its own row")


def _check_floating(name: str, x: object, shapes: dict[str, tuple[object, ...]], q: Tensor) -> None:
    """Check that a modifier is a floating-point tensor of one of these shapes, on the device of q."""
    if isinstance(x, Tensor) and x.is_floating_point() and any(_has_sizes(x, sizes) for sizes in shapes.values()):
        _check_device(name, x, q)
        return
    expected = " or ".join(f"{axes} = {_print_sizes(sizes)}" for axes, sizes in shapes.items())
    raise ValueError(f"{name} must be a floating-point tensor of shape {expected}, got {_describe(x)}")


def _has_sizes(x: Tensor, sizes: tuple[object, ...]) -> bool:
    pairs = zip(x.shape, sizes, strict=False)
    return x.dim() == len(sizes) and all(n in size if isinstance(size, tuple) else n == size for n, size in pairs)


def _print_sizes(sizes: tuple[object, ...]) -> str:
    # f-strings, not str(): torch.compile can trace only these for a symbolic size
    printed = ["|".join(f"{n}" for n in size) if isinstance(size, tuple) else f"{size}" for size in sizes]
    return f"({', '.join(printed)}{',' if len(printed) == 1 else ''})"


def _head_counts(q: Tensor, k: Tensor) -> tuple[int, ...]:
    """Return the number of heads that a gate may have: that of q or that of k."""
    return (q.shape[1],) if q.shape[1] == k.shape[1] else (q.shape[1], k.shape[1])


def _describe(x: object) -> str:
    return f"shape {tuple(x.shape)} of {x.dtype}" if isinstance(x, Tensor) else type(x).__name__


def _check_tokens(name: str, x: Tensor, mask: Tensor | None, largest: float, rule: str) -> None:
    """Check that the values at visible tokens are in 0..largest, where they can be read for free."""
    if not is_readable(x):
        return
    invalid = ~((x >= 0) & (x <= largest))  # also true for NaN
    if mask is not None:
        hidden = hidden_keys(mask)
        invalid = invalid & ~(hidden if x.dim() > 3 else hidden[..., 0])
    if invalid.any():
        place = tuple(invalid.nonzero()[0].tolist())
        axes = ", ".join(f"{axis} {n}" for axis, n in zip(("batch", "head", "key", "channel"), place, strict=False))
        raise ValueError(f"{name} must be {rule} at every visible token, got {x[place].item():g} at {axes}")


def _check_device(name: str, x: Tensor, q: Tensor) -> None:
    if x.device != q.device:
        raise ValueError(f"{name} is on {x.device}, but q is on {q.device}; they must agree")


def _require_capability(mechanism: "Attention", capability: str, argument: str) -> None:
    if capability not in mechanism.accepts:
        raise ValueError(f"attention kind {mechanism.kind!r} cannot take {argument}; use {_ALTERNATIVES[capability]}")


def _fits(x: Tensor, sizes: tuple[tuple[int, ...], ...]) -> bool:
    return all(actual in allowed for actual, allowed in zip(x.shape, sizes, strict=True))
