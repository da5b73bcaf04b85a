"""Dispatch to the Triton kernels: what they support, and how to call them.

Triton is imported inside the functions, so that a machine without it loses nothing.
"""

import os
import warnings
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qkv.attention.base import expand_heads
from qkv.attention.internal.gates import CLOSED
from qkv.attention.internal.validation import Modifiers
from qkv.attention.triton.kinds import KernelKind
from qkv.cost import Shape

if TYPE_CHECKING:
    from qkv.attention.delta import Delta
    from qkv.attention.feature_map import FeatureMap

TRITON_INSTALLED = find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Triton's own switch: the kernels then run on the CPU in an interpreter, for tests."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_DELTA_KEY_DIM = 128

StateSums = tuple[Tensor, ...]
"""Sum of features times values and, if the kind normalizes, of features."""


def is_preferred(mechanism: "FeatureMap | Delta", q: Tensor) -> bool:
    """Return whether a call should run in the kernels: by backend="triton", or by "auto" on a GPU."""
    automatic = mechanism.backend == "auto" and q.is_cuda and "triton" in mechanism.backends
    return mechanism.backend == "triton" or automatic


def takes(mechanism: "FeatureMap", q: Tensor, v: Tensor, modifiers: Modifiers) -> bool:
    """Return whether a call runs in the kernels, or must fail because backend="triton" asks for them."""
    if not is_preferred(mechanism, q):
        return False
    return mechanism.backend == "triton" or unsupported_reason(mechanism, q, v, modifiers) is None


def unsupported_reason(mechanism: "FeatureMap", q: Tensor, v: Tensor, modifiers: Modifiers | None = None) -> str | None:
    """Return why the kernels cannot take this call, naming the limit; None if they can."""
    kernel = mechanism.triton
    if kernel is None:
        return "it has no kernels: its class attribute `triton` is None"
    if reason := _unsupported_device(q):
        return reason
    if modifiers is not None and modifiers.channel_gated:
        return "its kernels take a gate per token, not per channel"
    if reason := kernel.unsupported_reason(mechanism):
        return reason
    return _unsupported_sizes(kernel.max_key_dim, q, v, mechanism.scale)


def unsupported_delta_reason(q: Tensor, v: Tensor, scale: float | None, modifiers: Modifiers) -> str | None:
    """Return why the kernels of the delta rule cannot take this call; None if they can."""
    if reason := _unsupported_device(q):
        return reason
    if modifiers.channel_gated:
        return "its kernels take a gate per token, not per channel"
    return _unsupported_sizes(MAX_DELTA_KEY_DIM, q, v, scale)


def _unsupported_device(q: Tensor) -> str | None:
    if not TRITON_INSTALLED:
        return "the package triton is not installed"
    if not q.is_cuda and not INTERPRETED:
        return f"its kernels run on CUDA, and q is on {q.device}"
    return None


def _unsupported_sizes(max_key_dim: int, q: Tensor, v: Tensor, scale: float | None) -> str | None:
    from qkv.attention.triton.plan import MAX_VALUE_DIM

    if q.shape[3] > max_key_dim:
        return f"its kernels take a key_dim up to {max_key_dim}, got {q.shape[3]}"
    if v.shape[3] > MAX_VALUE_DIM:
        return f"its kernels take a value_dim up to {MAX_VALUE_DIM}, got {v.shape[3]}"
    if 0 in (q.shape[3], v.shape[3]) or scale == 0:
        return "its kernels take no dim and no scale of 0"
    if q.dtype not in DTYPES:
        return f"its kernels take float32, bfloat16 and float16, got {q.dtype}"
    return None


@lru_cache(maxsize=64)
def warn_fallback(kind: str, reason: str) -> None:
    """Warn about the fallback to the slower chunked form, once per reason."""
    warnings.warn(f"attention kind {kind!r} falls back to the slower chunked form: {reason}", stacklevel=5)


def forward(mechanism: "FeatureMap", q: Tensor, k: Tensor, v: Tensor, modifiers: Modifiers) -> Tensor:
    """Return the outputs of `FeatureMap.forward`."""
    from qkv.attention.triton.op import feature_map_attention

    k, v = _expand_for_decay(q, k, v, modifiers)
    kernel, scale, segment = _kernel_options(mechanism, q.shape[3])
    state = None, None
    results = feature_map_attention(
        q,
        k,
        v,
        modifiers.mask,
        _decay_rates(modifiers, k),
        *state,
        kernel.name,
        scale,
        modifiers.causal,
        segment,
        False,
    )
    out: Tensor = results[0]
    return out


def forward_with_state(
    mechanism: "FeatureMap", q: Tensor, k: Tensor, v: Tensor, sums: StateSums, modifiers: Modifiers
) -> tuple[Tensor, StateSums]:
    """Return causal outputs and the new sums after a prefix with these sums: prefill of a decoder."""
    from qkv.attention.triton.op import feature_map_attention

    kernel, scale, segment = _kernel_options(mechanism, q.shape[3])
    state = sums if len(sums) > 1 else (sums[0], None)
    results = feature_map_attention(
        q, k, v, modifiers.mask, _decay_rates(modifiers, k), *state, kernel.name, scale, True, segment, True
    )
    return results[0], results[4:6] if len(sums) > 1 else results[4:5]


def decode_step(
    mechanism: "FeatureMap", q: Tensor, k: Tensor, v: Tensor, sums: StateSums, modifiers: Modifiers
) -> Tensor:
    """Return the output of one new token per sequence, and add it to these sums in place."""
    from qkv.attention.triton.decode import feature_map_step

    kernel, scale, _ = _kernel_options(mechanism, q.shape[3])
    state = sums if len(sums) > 1 else (sums[0], None)
    out: Tensor = feature_map_step(q, k, v, modifiers.mask, _decay_rates(modifiers, k), *state, kernel.name, scale)
    return out


def delta_forward(
    tensors: tuple[Tensor, Tensor, Tensor], state: Tensor | None, heads: int, modifiers: Modifiers, scale: float
) -> tuple[Tensor, Tensor]:
    """Return outputs and the new state of the delta rule, with this many states per batch element.

    Hidden keys and values are zero. No state is one of zeros.
    """
    from qkv.attention.triton.delta_op import delta_attention

    q, k, v = tensors
    decay, beta = _delta_rates(q, heads, modifiers)
    inputs = q, k, v, decay, beta, modifiers.starts, state
    needs_backward = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)
    results = delta_attention(*inputs, heads, scale, needs_backward)
    return results[0], results[1]


def delta_decode_step(
    tensors: tuple[Tensor, Tensor, Tensor], state: Tensor, modifiers: Modifiers, scale: float
) -> Tensor:
    """Return the output of one new token per sequence, and write it to this state in place."""
    from qkv.attention.triton.delta_decode import delta_step

    decay, beta = _delta_rates(tensors[0], state.shape[1], modifiers)
    out: Tensor = delta_step(*tensors, decay, beta, modifiers.starts, state, scale)
    return out


def _delta_rates(q: Tensor, heads: int, modifiers: Modifiers) -> tuple[Tensor | None, Tensor | None]:
    """Return decay and beta of each state and token, 0 at hidden tokens."""
    decay, beta = modifiers.decay, modifiers.beta
    hidden = None if modifiers.mask is None else ~modifiers.mask[:, None]
    if decay is not None and not modifiers.gated:  # a rate per head counts every place, hidden or not
        decay = decay[None, :, None].expand(q.shape[0], -1, q.shape[2])
    elif decay is not None and hidden is not None:
        decay = decay.masked_fill(hidden, 0)
    if beta is not None and hidden is not None:
        beta = beta.masked_fill(hidden, 0)
    return (
        None if decay is None else expand_heads(decay, heads),
        None if beta is None else expand_heads(beta, heads),
    )


def delta_multiplications(shape: Shape, heads: int) -> dict[str, int]:
    """Return the multiplications that the kernels of the delta rule execute, with this many states per batch element.

    2-byte elements count as bfloat16.
    """
    from qkv.attention.triton.delta_plan import DeltaPlan

    sizes = shape.batch, heads, shape.heads // heads, heads, shape.keys, shape.key_dim, shape.value_dim
    wide = shape.element_bytes == 4
    return DeltaPlan(*sizes, wide, has_decay=False, has_beta=False, has_starts=False).forward_multiplications()


def multiplications(mechanism: "FeatureMap", shape: Shape) -> dict[str, int]:
    """Return the multiplications that the kernels execute for one forward; 2-byte elements count as bfloat16."""
    from qkv.attention.triton.plan import Plan

    kernel, scale, segment = _kernel_options(mechanism, shape.key_dim)
    own_rates = shape.decay or shape.gate_heads == shape.heads
    key_heads = shape.heads if own_rates else shape.key_heads or shape.heads
    dtype = torch.float32 if shape.element_bytes == 4 else torch.bfloat16
    sizes = shape.keys, key_heads, shape.key_dim, shape.value_dim
    plan = Plan(kernel, shape.causal, scale, segment, *sizes, dtype, shape.keys > segment)
    gated = bool(shape.gate_heads)
    return plan.forward_multiplications(shape.batch, shape.heads, shape.queries, gated=gated)


def _kernel_options(mechanism: "FeatureMap", key_dim: int) -> tuple[KernelKind, float, int]:
    """Return the kernel, the scale, and the tokens per segment in whole tiles."""
    from qkv.attention.triton.plan import MIN_TILE, ceil_div

    kernel = mechanism.triton
    if kernel is None:
        raise ValueError(
            f"backend='triton' is not available for attention kind {mechanism.kind!r}: "
            "it has no kernels, its class attribute `triton` is None"
        )
    scale = mechanism.default_scale(key_dim) if mechanism.scale is None else mechanism.scale
    default = kernel.segment if key_dim <= MIN_TILE else kernel.wide_segment
    segment = default if mechanism.chunk is None else mechanism.chunk
    return kernel, scale, ceil_div(segment, MIN_TILE) * MIN_TILE


def _expand_for_decay(q: Tensor, k: Tensor, v: Tensor, modifiers: Modifiers) -> tuple[Tensor, Tensor]:
    """Repeat keys and values per query head, if each query head fades at its own rates."""
    if modifiers.decay is None or modifiers.gate_heads not in (0, q.shape[1]):
        return k, v
    return expand_heads(k, q.shape[1]), expand_heads(v, q.shape[1])


def _decay_rates(modifiers: Modifiers, k: Tensor) -> Tensor | None:
    """Return the rates per head, or per token and head of `k`: 0 at hidden tokens, a closed gate at a start."""
    decay, starts = modifiers.decay, modifiers.starts
    batch, heads, keys, _ = k.shape
    if decay is not None and modifiers.gated:
        rates = expand_heads(decay.float(), heads)
        if modifiers.mask is not None:
            rates = rates.masked_fill(~modifiers.mask[:, None], 0)
    elif starts is None:
        return None if decay is None else decay.float().contiguous()
    elif decay is None:
        rates = k.new_zeros(batch, heads, keys, dtype=torch.float32)
    else:  # by distance: hidden tokens fade, too
        rates = decay.float()[None, :, None].expand(batch, heads, keys)
    return rates if starts is None else rates.masked_fill(starts[:, None], CLOSED)
