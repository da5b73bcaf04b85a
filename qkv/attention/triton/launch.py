"""How the kernels of `feature_map_triton` are put together: buffers and launches.

    forward    states(k, v) -> scan -> read(q; k, v)
    backward   pull(q; k, v) -> states(q, dout) -> scan back -> pull(k; q, dout), read(k; q, dout)

A sequence of one segment needs no states: it is attended to one by one. Few rows are cut into stretches that are
walked at the same time; the sums before a stretch come from the scan, and are added where they are read. Without an
order every query reads the sum of all tokens.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from qkv.attention.triton.kernels import chunk_state as feature_map_triton
from qkv.attention.triton.kernels import grad_qk as pull_triton
from qkv.attention.triton.kernels import output as read_triton
from qkv.attention.triton.launch_cache import Constants, Relaunched
from qkv.attention.triton.plan import Plan, Stretches, blocks_of, power_of_two

STATES, SCAN = Relaunched(feature_map_triton.states), Relaunched(feature_map_triton.scan)
READ, PULL = Relaunched(read_triton.read), Relaunched(pull_triton.pull)
LARGEST_BLOCK = 128
"""Tokens whose places a program counts from that of the first."""


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
        return self.slots > (self.stretches.segments if self.stretches.local else 0)


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
    """The numbers of a token next to each other, and its block within reach of 32 bits; copied if they are not."""
    near = x.stride(2) * LARGEST_BLOCK < 2**31
    return x if near and (x.stride(-1) == 1 or x.shape[-1] == 1) else x.contiguous()


def room_for(x: Tensor) -> Tensor:
    """For a result that is like x, side by side; memory that overlaps, like that of `unfold`, is not imitated."""
    room = torch.empty_like(x)
    return room if room.stride(-1) == 1 or x.shape[-1] == 1 else x.new_empty(x.shape)


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
    wide = plan.width if plan.parts.normalizes else 0
    sums = Memory(
        new(rows, way.count, plan.width, columns, dtype=torch.float32), new(rows, way.count, wide, dtype=torch.float32)
    )
    slots = way.slots(started=walk.initial is not None) if plan.causal else 0
    prefix = Memory(new(rows, slots, plan.width, columns, dtype=plan.type), new(rows, slots, wide, dtype=torch.float32))
    weights = plan.memory_weights(stream.x.device)
    if rows:
        STATES(
            (way.count * rows, plan.width // plan.written * plan.value_blocks, 1),
            (stream.x, stream.c, *plan.tables(stream.x.device), weights,
             stream.share, stream.extra, walk.mask, walk.decay, sums.sums, sums.norms, prefix.sums, prefix.norms),
            (*strides(stream.x), *strides(stream.c),
             length, way.per, way.count, slots, rows, plan.key_heads, heads, stream.scale),
            _states(plan, stream.share is not None, walk.mask is not None, walk.decay is not None, stream.reverse,
                    way.local),
        )  # fmt: skip
    found = Prefix(prefix, way)
    if plan.causal and not found.before:
        return found, Memory(sums.sums[:, 0], sums.norms[:, 0]), None
    final, lost = _scanned(plan, sums, found, walk, length, reverse=stream.reverse)
    return found, final, lost


@lru_cache(maxsize=1024)
def _states(plan: Plan, shared: bool, hiding: bool, decays: bool, reverse: bool, local: bool) -> Constants:
    launch = plan.launches.back if reverse else plan.launches.write
    values = {
        "CHOSEN": plan.parts.chosen, "TURNED": plan.parts.turned, "NORMALIZES": plan.parts.normalizes,
        "SHARED": shared, "HIDING": hiding, "DECAYS": decays, "REVERSE": reverse, "LOCAL": local,
        "WEIGHS": plan.expands, "BLOCK": plan.block(launch.block),
    }  # fmt: skip
    return Constants({**values, **plan.sizes(plan.written)}, launch.options())


def _scanned(
    plan: Plan, sums: Memory, prefix: Prefix, walk: Walk, length: int, *, reverse: bool
) -> tuple[Memory, Tensor | None]:
    """The running sums before each stretch, behind those of the segments; the last one; the decay's gradient."""
    rows, segments, features, columns = sums.sums.shape
    final = Memory(sums.sums.new_empty(rows, features, columns), sums.norms.new_empty(rows, *sums.norms.shape[2:]))
    block = min(1024, power_of_two(features * columns))
    sum_blocks, norm_blocks = blocks_of(features * columns, block), blocks_of(sums.norms.shape[2], block)
    initial, initial_norms = _both(walk.initial)
    against, against_norms = _both(walk.against)
    lost = None if walk.decay is None or walk.against is None else sums.sums.new_empty(rows, sum_blocks + norm_blocks)
    if rows:
        SCAN(
            (rows, sum_blocks + norm_blocks, 1),
            (sums.sums, initial, against, prefix.memory.sums, final.sums,
             sums.norms, initial_norms, against_norms, prefix.memory.norms, final.norms,
             walk.decay, plan.memory_weights(sums.sums.device), lost),
            (features, columns, segments, prefix.slots, length, plan.key_heads),
            _scan(plan, sum_blocks, walk.initial is not None, walk.decay is not None, reverse, lost is not None, block),
        )  # fmt: skip
    return final, None if lost is None else lost.sum(1) * plan.result_scale


@lru_cache(maxsize=1024)
def _scan(
    plan: Plan, sum_blocks: int, started: bool, decays: bool, reverse: bool, loses: bool, block: int
) -> Constants:
    values = {
        "SUM_BLOCKS": sum_blocks, "WEIGHS": plan.expands, "STARTED": started, "PREFIXES": plan.causal,
        "DECAYS": decays, "REVERSE": reverse, "LOSES": loses, "SEGMENT": plan.segment, "BLOCK": block,
    }  # fmt: skip
    return Constants(values, {"num_warps": 4})


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
    """1 / normalizer of each query, in the backward."""
    extra: Tensor | None = None
    """The gradient of each normalizer, which the queries make and the keys use."""
    reverse: bool = False

    @property
    def flags(self) -> tuple[bool, bool, bool, bool]:
        """What a kernel is compiled for: shares, hidden keys, decay, order."""
        return self.share is not None, self.mask is not None, self.decay is not None, self.reverse


def reading(plan: Plan, sides: Sides, prefix: Prefix | None, out: Tensor) -> Tensor:
    """Fill `out`; the inverse normalizers of the forward, or nothing."""
    batch, heads, length = sides.a.shape[:3]
    divides = plan.parts.normalizes and not sides.reverse
    inverse = out.new_empty(batch, heads, length if divides else 0, dtype=torch.float32)
    block = plan.block((plan.launches.values if sides.reverse else plan.launches.read).block)
    if out.numel():
        READ(
            (blocks_of(length, block) * plan.value_blocks * batch * heads, 1, 1),
            (sides.a, sides.b, sides.c, *plan.tables(out.device), sides.share, sides.mask, sides.decay,
             *_memory(prefix), out, inverse),
            (*strides(sides.a), *strides(sides.b), *strides(sides.c), *strides(out),
             length, sides.b.shape[2], batch * heads, heads, sides.b.shape[1], plan.key_heads, *_way(prefix),
             sides.a_scale, sides.b_scale, plan.score_scale, plan.result_scale),
            _read(plan, *sides.flags, *_reach(prefix)),
        )  # fmt: skip
    return inverse


@lru_cache(maxsize=1024)
def _read(plan: Plan, shared: bool, hiding: bool, decays: bool, reverse: bool, local: bool, before: bool) -> Constants:
    launch = plan.launches.values if reverse else plan.launches.read
    values = {
        "LIFT": plan.parts.lift, "WEIGHT": plan.parts.weight, "FEATURES": plan.parts.features,
        "EXPANDS": plan.expands, "NORMALIZES": plan.parts.normalizes and not reverse, "SHARED": shared,
        "HIDING": hiding, "DECAYS": decays, "REVERSE": reverse, "INSIDE": plan.inside, "LOCAL": local, "BEFORE": before,
        "A_BLOCK": plan.block(launch.block), "B_BLOCK": plan.block(launch.met),
    }  # fmt: skip
    return Constants({**values, **plan.sizes(plan.taken(launch))}, launch.options())


def pulling(plan: Plan, sides: Sides, g: Tensor, answer: Tensor, prefix: Prefix | None, out: Tensor) -> Tensor | None:
    """Fill `out` with the gradients of `sides.a`; what each token adds to that of the decay, or None.

    With those of the queries `sides.extra` is filled, too, from their `answer`.
    """
    batch, heads, length = sides.a.shape[:3]
    lost = None if sides.decay is None else out.new_empty(batch, heads, length, dtype=torch.float32)
    block = plan.block((plan.launches.keys if sides.reverse else plan.launches.queries).block)
    if out.numel():
        PULL(
            (blocks_of(length, block) * batch * heads, 1, 1),
            (sides.a, sides.b, sides.c, g, *plan.tables(out.device), sides.share, sides.extra, sides.mask, sides.decay,
             *_memory(prefix), answer, out, lost),
            (*strides(sides.a), *strides(sides.b), *strides(sides.c), *strides(g), *strides(answer), *strides(out),
             length, sides.b.shape[2], batch * heads, heads, sides.b.shape[1], plan.key_heads, *_way(prefix),
             sides.a_scale, sides.b_scale, plan.score_scale, plan.result_scale),
            _pull(plan, *sides.flags[1:], *_reach(prefix)),
        )  # fmt: skip
    return lost


@lru_cache(maxsize=1024)
def _pull(plan: Plan, hiding: bool, decays: bool, reverse: bool, local: bool, before: bool) -> Constants:
    launch = plan.launches.keys if reverse else plan.launches.queries
    values = {
        "LIFT": plan.parts.lift, "LOWER": plan.parts.lower, "WEIGHT": plan.parts.weight, "SLOPE": plan.parts.slope,
        "FEATURES": plan.parts.features, "PULL": plan.parts.pull, "NORMALIZES": plan.parts.normalizes,
        "HIDING": hiding, "DECAYS": decays, "LOSES": decays, "REVERSE": reverse, "INSIDE": plan.inside, "LOCAL": local,
        "BEFORE": before, "A_BLOCK": plan.block(launch.block), "B_BLOCK": plan.block(launch.met),
    }  # fmt: skip
    return Constants({**values, **plan.sizes(plan.taken(launch))}, launch.options())


def _memory(prefix: Prefix | None) -> tuple[Tensor | None, Tensor | None]:
    return _both(None if prefix is None else prefix.memory)


def _both(memory: Memory | None) -> tuple[Tensor | None, Tensor | None]:
    return (None, None) if memory is None else (memory.sums, memory.norms)


def _reach(prefix: Prefix | None) -> tuple[bool, bool]:
    """Whether the segments of a stretch have a prefix, and whether the stretches have one."""
    return (False, False) if prefix is None else (prefix.stretches.local, prefix.before)


def _way(prefix: Prefix | None) -> tuple[int, int, int]:
    """Stretches, segments of one, and slots."""
    return (1, 1, 1) if prefix is None else (prefix.stretches.count, prefix.stretches.per, prefix.slots)
