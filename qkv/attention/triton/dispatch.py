"""The door to the GPU kernels of feature-map kinds: whether they can take a call, and the call.

Triton is imported behind it, so that a machine without one loses nothing.
"""

import os
import warnings
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qkv.attention.base import expand_heads
from qkv.attention.internal.validation import Extras
from qkv.cost import Shape

if TYPE_CHECKING:
    from qkv.attention.feature_map import FeatureMap

HERE = find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Triton's own switch: kernels then run on the CPU, one number after the other, to be tested."""

Sums = tuple[Tensor, ...]


def refusal(mechanism: "FeatureMap", q: Tensor, v: Tensor) -> str | None:
    """Why the kernels cannot take this call, naming the limit; None if they can."""
    if not HERE:
        return "the package triton is not installed"
    from qkv.attention.triton.plan import KINDS, LARGEST_VALUE_DIM

    if not q.is_cuda and not INTERPRETED:
        return f"its kernels run on CUDA, and q is on {q.device}"
    if getattr(mechanism, "order", 2) != 2:
        return f"its kernels are of order 2, not {mechanism.order}"
    largest = KINDS[mechanism.kind].largest_key_dim
    if q.shape[3] > largest:
        return f"its kernels take a key_dim up to {largest}, got {q.shape[3]}"
    if v.shape[3] > LARGEST_VALUE_DIM:
        return f"its kernels take a value_dim up to {LARGEST_VALUE_DIM}, got {v.shape[3]}"
    if 0 in (q.shape[3], v.shape[3]) or mechanism.scale == 0:
        return "its kernels take no dim and no scale of 0"
    if q.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"its kernels take float32, bfloat16 and float16, got {q.dtype}"
    return None


@lru_cache(maxsize=64)
def warn_once(kind: str, refused: str) -> None:
    """That a slower form is taken, and why; said once for each reason."""
    warnings.warn(f"attention kind {kind!r} takes the slower chunked form: {refused}", stacklevel=5)


def attend(mechanism: "FeatureMap", q: Tensor, k: Tensor, v: Tensor, extras: Extras) -> Tensor:
    """forward, by the kernels."""
    from qkv.attention.triton.op import feature_map_attention

    k, v = _per_head(q, k, v, extras)
    scale, segment = _numbers(mechanism, q.shape[3])
    out: Tensor = feature_map_attention(
        q, k, v, extras.mask, _rates(extras), None, None, mechanism.kind, scale, extras.causal, segment, False
    )[0]
    return out


def walk(mechanism: "FeatureMap", q: Tensor, k: Tensor, v: Tensor, sums: Sums, extras: Extras) -> tuple[Tensor, Sums]:
    """Causal, from these sums on: outputs and the new sums."""
    from qkv.attention.triton.op import feature_map_attention

    scale, segment = _numbers(mechanism, q.shape[3])
    norms = sums[1] if len(sums) > 1 else None
    results = feature_map_attention(
        q, k, v, extras.mask, _rates(extras), sums[0], norms, mechanism.kind, scale, True, segment, True
    )
    return results[0], results[4:6] if norms is not None else results[4:5]


def advance(mechanism: "FeatureMap", q: Tensor, k: Tensor, v: Tensor, sums: Sums, extras: Extras) -> Tensor:
    """One new token, written into these sums where they lie."""
    from qkv.attention.triton.kernels.decode_step import feature_map_step

    norms = sums[1] if len(sums) > 1 else None
    scale, _ = _numbers(mechanism, q.shape[3])
    out: Tensor = feature_map_step(q, k, v, extras.mask, _rates(extras), sums[0], norms, mechanism.kind, scale)
    return out


def multiplications(mechanism: "FeatureMap", shape: Shape) -> dict[str, int]:
    """What the kernels execute for one forward of this shape; two bytes a number are taken for bfloat16."""
    from qkv.attention.triton.plan import Plan

    scale, segment = _numbers(mechanism, shape.key_dim)
    key_heads = shape.heads if shape.decay else shape.key_heads or shape.heads
    dtype = torch.float32 if shape.element_bytes == 4 else torch.bfloat16
    sizes = shape.keys, key_heads, shape.key_dim, shape.value_dim
    plan = Plan(mechanism.kind, shape.causal, scale, segment, *sizes, dtype, shape.keys > segment)
    return plan.forward_multiplications(shape.batch, shape.heads, shape.queries)


def _numbers(mechanism: "FeatureMap", key_dim: int) -> tuple[float, int]:
    """The scale, and how many tokens a segment has: whole tiles of 16."""
    from qkv.attention.triton.plan import KINDS, SMALLEST

    scale = mechanism.default_scale(key_dim) if mechanism.scale is None else mechanism.scale
    parts = KINDS[mechanism.kind]
    usual = parts.segment if key_dim <= SMALLEST else parts.wide_segment
    segment = usual if mechanism.chunk is None else mechanism.chunk
    return scale, -(-segment // SMALLEST) * SMALLEST


def _per_head(q: Tensor, k: Tensor, v: Tensor, extras: Extras) -> tuple[Tensor, Tensor]:
    """With decay each query head fades at its own rate, so each has keys of its own."""
    if extras.decay is None:
        return k, v
    return expand_heads(k, q.shape[1]), expand_heads(v, q.shape[1])


def _rates(extras: Extras) -> Tensor | None:
    return None if extras.decay is None else extras.decay.float().contiguous()
