"""How the kernels of `feature_map_triton` are put together: buffers and launches.

    forward    states(k, v) -> scan -> read(q; k, v)
    backward   deltas -> states(q, dout) -> scan back -> pull(q; k, v), pull(k; q, dout), read(k; q, dout)

A sequence of one segment needs no states: it is attended to one by one. Without an order every query reads the
sum of all segments instead of a prefix.
"""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from qkv.attention import feature_map_triton as kernels
from qkv.attention.feature_map_plan import MET, PULL, READ, WRITE, Plan


@dataclass(frozen=True)
class Memory:
    """Sums of features and values, and of features alone, in whole tiles; one for each segment, or one for all."""

    sums: Tensor
    norms: Tensor
    segments: int


@dataclass(frozen=True)
class Stream:
    """What is summed: positions and values of tokens, and their weights in the backward."""

    x: Tensor
    c: Tensor
    scale: float
    share: Tensor | None = None
    extra: Tensor | None = None
    reverse: bool = False


def strides(x: Tensor) -> tuple[int, int, int]:
    """Of batch, head and token; the numbers of a token lie side by side."""
    return x.stride(0), x.stride(1), x.stride(2)


def side_by_side(x: Tensor) -> Tensor:
    """The numbers of a token next to each other, copied only if they are not."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def summed(plan: Plan, stream: Stream, mask: Tensor | None, decay: Tensor | None) -> Memory:
    """The sums of each segment by itself, float32: (batch * key_heads, segments, features, values)."""
    batch, heads, length = stream.x.shape[:3]
    segments = max(triton.cdiv(length, plan.segment), 1)
    rows, width = batch * plan.key_heads, plan.width
    new = stream.x.new_empty
    sums = new(rows, segments, width, plan.value_size * plan.value_blocks, dtype=torch.float32)
    norms = new(rows, segments, width if plan.parts.normalises else 0, dtype=torch.float32)
    if rows:
        kernels.states[segments * rows, plan.width // plan.written * plan.value_blocks](
            stream.x, stream.c, *plan.tables(stream.x.device),
            stream.share, stream.extra, mask, decay, sums, norms,
            *strides(stream.x), *strides(stream.c), length, segments, rows, plan.key_heads, heads, stream.scale,
            FEATURES=plan.parts.features, NORMALISES=plan.parts.normalises, SHARED=stream.share is not None,
            HIDING=mask is not None, DECAYS=decay is not None, REVERSE=stream.reverse,
            BLOCK=plan.block(WRITE.block), **plan.sizes(plan.written), **WRITE.options(),
        )  # fmt: skip
    return Memory(sums, norms, segments)


@dataclass(frozen=True)
class Walk:
    """A walk over the segments: where it begins, which way, and what the decay's gradient is taken against."""

    length: int
    decay: Tensor | None = None
    initial: Memory | None = None
    reverse: bool = False
    against: Memory | None = None
    """The prefixes of the forward walk."""


def scanned(plan: Plan, memory: Memory, walk: Walk) -> tuple[Memory, Memory, Tensor | None]:
    """The running sums before each segment, the last one, and the gradient of the decay between segments by row."""
    begin = (None, None) if walk.initial is None else (walk.initial.sums, walk.initial.norms)
    against = (None, None) if walk.against is None else (walk.against.sums, walk.against.norms)
    sums, last_sums, lost = _scan(plan, memory.sums, walk, begin[0], against[0], plan.type)
    norms, last_norms, lost_too = _scan(plan, memory.norms, walk, begin[1], against[1], torch.float32)
    lost = lost if lost is None or lost_too is None else lost + lost_too
    return Memory(sums, norms, memory.segments), Memory(last_sums, last_norms, 1), lost


def _scan(
    plan: Plan, sums: Tensor, walk: Walk, initial: Tensor | None, against: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor | None]:
    rows, segments, size = *sums.shape[:2], sums.shape[2:].numel()
    prefix = sums.new_empty(sums.shape if plan.causal else (0,), dtype=dtype)
    final = sums.new_empty(rows, *sums.shape[2:])
    block = min(1024, triton.next_power_of_2(max(size, 1)))
    blocks = triton.cdiv(size, block)
    lost = None if walk.decay is None or against is None else sums.new_zeros(rows, blocks)
    weights = plan.memory_weights(sums.device)
    columns = sums.shape[3:].numel()
    if rows and size:
        kernels.scan[rows, blocks](
            sums, initial, against, walk.decay, weights, prefix, final, lost,
            size, columns, segments, walk.length, plan.key_heads, WEIGHS=weights is not None,
            STARTED=initial is not None, PREFIXES=plan.causal, DECAYS=walk.decay is not None, REVERSE=walk.reverse,
            LOSES=lost is not None, SEGMENT=plan.segment, BLOCK=block, num_warps=4,
        )  # fmt: skip
    return prefix, final, None if lost is None else lost.sum(1) * plan.result_scale


@dataclass(frozen=True)
class Sides:
    """The two sides of a reading: a asks, b and c answer; reversed, the keys ask and the queries answer."""

    a: Tensor
    b: Tensor
    c: Tensor
    a_scale: float
    b_scale: float
    mask: Tensor | None = None
    decay: Tensor | None = None
    share: Tensor | None = None
    """1 / normaliser of each query, in the backward."""
    extra: Tensor | None = None
    """The gradient of each normaliser."""
    reverse: bool = False


def reading(plan: Plan, sides: Sides, memory: Memory | None, out: Tensor) -> Tensor:
    """Fill `out`; the inverse normalisers of the forward, or nothing."""
    batch, heads, length = sides.a.shape[:3]
    divides = plan.parts.normalises and not sides.reverse
    inverse = out.new_empty(batch, heads, length if divides else 0, dtype=torch.float32)
    block = plan.block(READ.block)
    if out.numel():
        kernels.read[(triton.cdiv(length, block) * plan.value_blocks * batch * heads,)](
            sides.a, sides.b, sides.c, *plan.tables(out.device), sides.share, sides.mask, sides.decay,
            memory and memory.sums, memory and memory.norms, out, inverse,
            *strides(sides.a), *strides(sides.b), *strides(sides.c), *strides(out),
            length, sides.b.shape[2], batch * heads, heads, sides.b.shape[1], plan.key_heads,
            memory.segments if memory else 1,
            sides.a_scale, sides.b_scale, plan.score_scale, plan.result_scale,
            LIFT=plan.parts.lift, WEIGHT=plan.parts.weight, FEATURES=plan.parts.features, EXPANDS=plan.expands,
            NORMALISES=divides, SHARED=sides.share is not None, HIDING=sides.mask is not None,
            DECAYS=sides.decay is not None, REVERSE=sides.reverse, INSIDE=plan.inside, REMEMBERS=memory is not None,
            A_BLOCK=block, B_BLOCK=plan.block(MET), **plan.sizes(plan.taken), **READ.options(),
        )  # fmt: skip
    return inverse


def pulling(plan: Plan, sides: Sides, g: Tensor, memory: Memory | None, out: Tensor) -> Tensor | None:
    """Fill `out` with the gradients of `sides.a`; what each token adds to that of the decay, or None."""
    batch, heads, length = sides.a.shape[:3]
    lost = None if sides.decay is None else out.new_empty(batch, heads, length, dtype=torch.float32)
    block = plan.block(PULL.block)
    if out.numel():
        kernels.pull[(triton.cdiv(length, block) * batch * heads,)](
            sides.a, sides.b, sides.c, g, *plan.tables(out.device),
            sides.share, sides.extra, sides.mask, sides.decay,
            memory and memory.sums, memory and memory.norms, out, lost,
            *strides(sides.a), *strides(sides.b), *strides(sides.c), *strides(g), *strides(out),
            length, sides.b.shape[2], batch * heads, heads, sides.b.shape[1], plan.key_heads,
            memory.segments if memory else 1,
            sides.a_scale, sides.b_scale, plan.score_scale, plan.result_scale,
            LIFT=plan.parts.lift, LOWER=plan.parts.lower, WEIGHT=plan.parts.weight, SLOPE=plan.parts.slope,
            FEATURES=plan.parts.features, PULL=plan.parts.pull,
            NORMALISES=plan.parts.normalises, HIDING=sides.mask is not None, DECAYS=sides.decay is not None,
            LOSES=lost is not None, REVERSE=sides.reverse, INSIDE=plan.inside, REMEMBERS=memory is not None,
            A_BLOCK=block, B_BLOCK=plan.block(MET), **plan.sizes(plan.taken), **PULL.options(),
        )  # fmt: skip
    return lost


def normaliser_gradients(out: Tensor, g: Tensor, inverse: Tensor) -> Tensor:
    """-(g.out) / norm of each query."""
    batch, heads, length, value_dim = out.shape
    delta = torch.empty_like(inverse)
    if delta.numel():
        kernels.deltas[(triton.cdiv(length, 128) * batch * heads,)](
            out, g, inverse, delta, *strides(out), *strides(g), length, batch * heads, heads,
            BLOCK=128, VALUE_DIM=value_dim, VALUE_SIZE=triton.next_power_of_2(value_dim), num_warps=4,
        )  # fmt: skip
    return delta
