"""How the kernels of `feature_map_triton` are put together: buffers and launches.

    forward    states(k, v) -> scan -> read(q; k, v)
    backward   deltas -> states(q, dout) -> scan back -> pull(q; k, v), pull(k; q, dout), read(k; q, dout)

A sequence of one segment needs no states: it is attended to one by one. Few rows are cut into stretches that are
walked at the same time; the sums before a stretch come from the scan, and are added where they are read. Without an
order every query reads the sum of all tokens.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.attention import feature_map_triton, pull_triton, read_triton
from qkv.attention.feature_map_plan import Plan, Stretches, blocks_of, power_of_two


@dataclass(frozen=True)
class Memory:
    """Sums of features and values, and of features alone, in whole tiles: (rows, slots, features, values)."""

    sums: Tensor
    norms: Tensor


@dataclass(frozen=True)
class Prefix:
    """What is read: the sums before each segment in its stretch, then those before each stretch; or those of all."""

    memory: Memory
    stretches: Stretches

    @property
    def slots(self) -> int:
        """Sums of a row."""
        return self.memory.sums.shape[1]

    @property
    def before(self) -> bool:
        """Whether anything is before the stretches."""
        return self.slots > self.stretches.segments * self.stretches.local


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


@dataclass(frozen=True)
class Walk:
    """A walk over the tokens: where it begins, what fades, and what the decay's gradient is taken against."""

    mask: Tensor | None = None
    decay: Tensor | None = None
    initial: Memory | None = None
    against: Memory | None = None
    """The prefixes of the forward walk."""


def walked(plan: Plan, stream: Stream, walk: Walk) -> tuple[Prefix, Memory, Tensor | None]:
    """What each segment reads, the sums of all tokens, and the gradient of the decay between segments by row."""
    batch, heads, length = stream.x.shape[:3]
    rows, columns, new = batch * plan.key_heads, plan.value_size * plan.value_blocks, stream.x.new_empty
    way = plan.stretches(length, rows, decays=walk.decay is not None)
    wide = plan.width if plan.parts.normalises else 0
    sums = Memory(
        new(rows, way.count, plan.width, columns, dtype=torch.float32), new(rows, way.count, wide, dtype=torch.float32)
    )
    slots = way.slots(started=walk.initial is not None) if plan.causal else 0
    prefix = Memory(new(rows, slots, plan.width, columns, dtype=plan.type), new(rows, slots, wide, dtype=torch.float32))
    weights = plan.memory_weights(stream.x.device)
    if rows:
        feature_map_triton.states[way.count * rows, plan.width // plan.written * plan.value_blocks](
            stream.x, stream.c, *plan.tables(stream.x.device), weights,
            stream.share, stream.extra, walk.mask, walk.decay, sums.sums, sums.norms, prefix.sums, prefix.norms,
            *strides(stream.x), *strides(stream.c),
            length, way.per, way.count, slots, rows, plan.key_heads, heads, stream.scale,
            FEATURES=plan.parts.features, NORMALISES=plan.parts.normalises, SHARED=stream.share is not None,
            HIDING=walk.mask is not None, DECAYS=walk.decay is not None, REVERSE=stream.reverse,
            LOCAL=way.local, WEIGHS=weights is not None,
            BLOCK=plan.block(plan.launches.write.block), **plan.sizes(plan.written), **plan.launches.write.options(),
        )  # fmt: skip
    found = Prefix(prefix, way)
    if plan.causal and not found.before:
        return found, Memory(sums.sums[:, 0], sums.norms[:, 0]), None
    final, lost = _scanned(plan, sums, found, walk, length, reverse=stream.reverse)
    return found, final, lost


def _scanned(
    plan: Plan, sums: Memory, prefix: Prefix, walk: Walk, length: int, *, reverse: bool
) -> tuple[Memory, Tensor | None]:
    """The running sums before each stretch, behind those of the segments; the last one; the decay's gradient."""
    weights = plan.memory_weights(sums.sums.device)
    finals, losses = [], []
    for one, into, initial, against in zip(
        (sums.sums, sums.norms),
        (prefix.memory.sums, prefix.memory.norms),
        (None, None) if walk.initial is None else (walk.initial.sums, walk.initial.norms),
        (None, None) if walk.against is None else (walk.against.sums, walk.against.norms),
        strict=True,
    ):
        rows, size = one.shape[0], one.shape[2:].numel()
        final = one.new_empty(rows, *one.shape[2:])
        block = min(1024, power_of_two(max(size, 1)))
        blocks = blocks_of(size, block)
        lost = None if walk.decay is None or against is None else one.new_zeros(rows, blocks)
        if rows and size:
            feature_map_triton.scan[rows, blocks](
                one, initial, against, walk.decay, weights, into, final, lost,
                size, one.shape[3:].numel(), one.shape[1], prefix.slots, length, plan.key_heads,
                WEIGHS=weights is not None, STARTED=initial is not None, PREFIXES=plan.causal,
                DECAYS=walk.decay is not None, REVERSE=reverse, LOSES=lost is not None,
                SEGMENT=plan.segment, BLOCK=block, num_warps=4,
            )  # fmt: skip
        finals.append(final)
        losses += [] if lost is None else [lost.sum(1) * plan.result_scale]
    return Memory(*finals), sum(losses[1:], losses[0]) if losses else None


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


def reading(plan: Plan, sides: Sides, prefix: Prefix | None, out: Tensor) -> Tensor:
    """Fill `out`; the inverse normalisers of the forward, or nothing."""
    batch, heads, length = sides.a.shape[:3]
    divides = plan.parts.normalises and not sides.reverse
    inverse = out.new_empty(batch, heads, length if divides else 0, dtype=torch.float32)
    launch = plan.launches.values if sides.reverse else plan.launches.read
    block = plan.block(launch.block)
    if out.numel():
        read_triton.read[(blocks_of(length, block) * plan.value_blocks * batch * heads,)](
            sides.a, sides.b, sides.c, *plan.tables(out.device), sides.share, sides.mask, sides.decay,
            prefix and prefix.memory.sums, prefix and prefix.memory.norms, out, inverse,
            *strides(sides.a), *strides(sides.b), *strides(sides.c), *strides(out),
            length, sides.b.shape[2], batch * heads, heads, sides.b.shape[1], plan.key_heads,
            *_way(prefix),
            sides.a_scale, sides.b_scale, plan.score_scale, plan.result_scale,
            LIFT=plan.parts.lift, WEIGHT=plan.parts.weight, FEATURES=plan.parts.features, EXPANDS=plan.expands,
            NORMALISES=divides, SHARED=sides.share is not None, HIDING=sides.mask is not None,
            DECAYS=sides.decay is not None, REVERSE=sides.reverse, INSIDE=plan.inside,
            LOCAL=prefix is not None and prefix.stretches.local, BEFORE=prefix is not None and prefix.before,
            A_BLOCK=block, B_BLOCK=plan.block(launch.met), **plan.sizes(plan.taken(launch)), **launch.options(),
        )  # fmt: skip
    return inverse


def pulling(plan: Plan, sides: Sides, g: Tensor, prefix: Prefix | None, out: Tensor) -> Tensor | None:
    """Fill `out` with the gradients of `sides.a`; what each token adds to that of the decay, or None."""
    batch, heads, length = sides.a.shape[:3]
    lost = None if sides.decay is None else out.new_empty(batch, heads, length, dtype=torch.float32)
    launch = plan.launches.keys if sides.reverse else plan.launches.queries
    block = plan.block(launch.block)
    if out.numel():
        pull_triton.pull[(blocks_of(length, block) * batch * heads,)](
            sides.a, sides.b, sides.c, g, *plan.tables(out.device),
            sides.share, sides.extra, sides.mask, sides.decay,
            prefix and prefix.memory.sums, prefix and prefix.memory.norms, out, lost,
            *strides(sides.a), *strides(sides.b), *strides(sides.c), *strides(g), *strides(out),
            length, sides.b.shape[2], batch * heads, heads, sides.b.shape[1], plan.key_heads,
            *_way(prefix),
            sides.a_scale, sides.b_scale, plan.score_scale, plan.result_scale,
            LIFT=plan.parts.lift, LOWER=plan.parts.lower, WEIGHT=plan.parts.weight, SLOPE=plan.parts.slope,
            FEATURES=plan.parts.features, PULL=plan.parts.pull,
            NORMALISES=plan.parts.normalises, HIDING=sides.mask is not None, DECAYS=sides.decay is not None,
            LOSES=lost is not None, REVERSE=sides.reverse, INSIDE=plan.inside,
            LOCAL=prefix is not None and prefix.stretches.local, BEFORE=prefix is not None and prefix.before,
            A_BLOCK=block, B_BLOCK=plan.block(launch.met), **plan.sizes(plan.taken(launch)), **launch.options(),
        )  # fmt: skip
    return lost


def _way(prefix: Prefix | None) -> tuple[int, int, int]:
    """Stretches, segments of one, and slots."""
    return (1, 1, 1) if prefix is None else (prefix.stretches.count, prefix.stretches.per, prefix.slots)


def normaliser_gradients(out: Tensor, g: Tensor, inverse: Tensor) -> Tensor:
    """-(g.out) / norm of each query."""
    batch, heads, length, value_dim = out.shape
    delta = torch.empty_like(inverse)
    if delta.numel():
        feature_map_triton.deltas[(blocks_of(length, 128) * batch * heads,)](
            out, g, inverse, delta, *strides(out), *strides(g), length, batch * heads, heads,
            BLOCK=128, VALUE_DIM=value_dim, VALUE_SIZE=power_of_two(value_dim), num_warps=4,
        )  # fmt: skip
    return delta
