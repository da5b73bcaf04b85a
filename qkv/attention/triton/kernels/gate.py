"""Kernels of a gate, a decay rate per token: its sums, and its gradient.

    sums     d_t = sum of the rates from the first token of the segment up to t
    borders  the sum of all rates before each segment

Both are in powers of two, so that a factor is exp2 of a difference. A rate of CLOSED or more gives the factor 0: this
is how a document starts. Differences are taken between neighbors of a segment, where the sums are small; with float32
operands the sums are float64.

The gradient needs no exponents of its own. With P_ij = weight_ij times its gradient, the sum over all pairs that cross
a token, i >= t > j, is the negative gradient of the rate at t. From one token to the next it loses the pairs of query t
and gains those of key t, pairs (t, t) left out: a closed gate makes all of them vanish. It is known at each border of
segments, as a product of the two states there.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from qkv.attention.triton.kernels.common import Pointer

CLOSED = tl.constexpr(128.0)
"""Rate at which a gate is closed, and to which larger ones are clamped: exp(-128) is 0 in float32."""
LOG2_E = tl.constexpr(1.4426950408889634)


class SumPointers(NamedTuple):
    """Tensors of `gate_sums` and `gate_borders`."""

    rates: Pointer
    sums: Pointer
    borders: Pointer


class SumSizes(NamedTuple):
    """Run-time sizes of `gate_sums`."""

    length: int
    rows: int
    """batch * heads"""
    heads: int


@triton.jit
def border_row(borders, row, length, SEGMENT: tl.constexpr):
    """Return the address of the sums at the borders of one row: one more than it has segments."""
    segments = tl.maximum((length + SEGMENT - 1) // SEGMENT, 1)
    return borders + row.to(tl.int64) * (segments + 1)


@triton.jit
def fade_between(borders, row, first, last, length, SEGMENT: tl.constexpr):
    """Return the factor by which a state fades from one border of segments to a later one."""
    base = border_row(borders, row, length, SEGMENT)
    return tl.exp2((tl.load(base + first) - tl.load(base + last)).to(tl.float32))  # scalar


@triton.jit
def split_fade(borders, row, segment, sizes, SEGMENT: tl.constexpr, REVERSE: tl.constexpr):
    """Return the factor of the state before the split at this segment or, reversed, of that after the split."""
    each = sizes.segments_per_split
    split = tl.minimum(segment // each, sizes.num_splits - 1)
    if REVERSE:
        segments = tl.maximum((sizes.a_length + SEGMENT - 1) // SEGMENT, 1)
        first, last = segment + 1, tl.minimum((split + 1) * each, segments)
    else:
        first, last = split * each, segment
    return fade_between(borders, row, first, last, sizes.a_length, SEGMENT)


@triton.jit
def load_sums(sums, row, tokens, valid, length, IS_KEY: tl.constexpr):
    """Load the sums of these tokens; where not valid, a sum with which every factor is 0."""
    absent = float("inf")
    if IS_KEY:
        absent = float("-inf")
    return tl.load(sums + row.to(tl.int64) * length + tokens, mask=valid, other=absent)  # shape of tokens


@triton.jit
def anchor_sum(sums, row, start, segment, length, REVERSE: tl.constexpr, TILES: tl.constexpr):
    """Load a sum between those of a block of tokens and of all tokens outside of its diagonal that it attends to."""
    place = start
    if REVERSE:
        place = tl.minimum(tl.minimum(start + TILES.BLOCK_A, (segment + 1) * TILES.SEGMENT), length) - 1
    return tl.load(sums + row.to(tl.int64) * length + place)  # scalar


@triton.jit
def end_sum(sums, row, segment, length, SEGMENT: tl.constexpr):
    """Load the sum at the last token of a segment, 0 without tokens."""
    last = tl.minimum((segment + 1) * SEGMENT, length) - 1
    return tl.load(sums + row.to(tl.int64) * length + last, mask=last >= 0, other=0.0)  # scalar


@triton.jit
def anchor_fade(own, anchor, REVERSE: tl.constexpr):
    """Return the factor from each token to the anchor of its block; keys (REVERSE) are before it."""
    if REVERSE:
        exponent = own - anchor
    else:
        exponent = anchor - own
    return tl.exp2(exponent.to(tl.float32))  # shape of own


@triton.jit
def border_fade(anchor, sums, row, segment, length, SEGMENT: tl.constexpr, REVERSE: tl.constexpr):
    """Return the factor from the anchor to the token before the segment or, reversed, to its last token."""
    if REVERSE:
        exponent = anchor - end_sum(sums, row, segment, length, SEGMENT)
    else:
        exponent = -anchor
    return tl.exp2(exponent.to(tl.float32))  # scalar


@triton.jit
def gate_sums(pointers, strides, sizes, SEGMENT: tl.constexpr, BLOCK: tl.constexpr):
    """Sum the rates inside one segment of one row; its total is stored after its border."""
    segment, row = tl.program_id(0) // sizes.rows, tl.program_id(0) % sizes.rows
    batch, head = row // sizes.heads, row % sizes.heads
    place = tl.arange(0, BLOCK)
    tokens = (segment * SEGMENT + place).to(tl.int64)  # [BLOCK]
    inside = (place < SEGMENT) & (tokens < sizes.length)
    first = pointers.rates + batch.to(tl.int64) * strides.batch + head.to(tl.int64) * strides.head
    rates = tl.load(first + tokens * strides.token, mask=inside, other=0.0).to(tl.float64)  # [BLOCK]
    powers = tl.minimum(rates, CLOSED, propagate_nan=tl.PropagateNan.ALL) * LOG2_E
    sums = tl.cumsum(powers, 0)
    here = pointers.sums + row.to(tl.int64) * sizes.length + tokens
    tl.store(here, sums.to(pointers.sums.dtype.element_ty), mask=inside)  # [BLOCK]
    base = border_row(pointers.borders, row, sizes.length, SEGMENT)
    tl.store(base + segment + 1, tl.sum(powers, 0))  # scalar


@triton.jit
def gate_borders(pointers, sizes, SEGMENT: tl.constexpr, BLOCK: tl.constexpr):
    """Turn the totals of the segments of one row into the sums before each segment, in place."""
    base = border_row(pointers.borders, tl.program_id(0), sizes.length, SEGMENT)
    segments = tl.maximum((sizes.length + SEGMENT - 1) // SEGMENT, 1)
    zero = tl.program_id(0).to(tl.float64) * 0.0
    tl.store(base, zero)  # scalar
    before = zero
    for start in range(0, segments, BLOCK):
        borders = start + tl.arange(0, BLOCK)
        totals = tl.load(base + 1 + borders, mask=borders < segments, other=0.0)  # [BLOCK]
        tl.store(base + 1 + borders, before + tl.cumsum(totals, 0), mask=borders < segments)  # [BLOCK]
        before += tl.sum(totals, 0)


class GradientPointers(NamedTuple):
    """Tensors of `gate_gradient`."""

    rates: Pointer
    borders: Pointer
    query_pairs: Pointer
    """Sum of P over the keys before each query."""
    key_pairs: Pointer
    """Sum of P over the queries after each key."""
    prefix_kv: Pointer
    suffix_kv: Pointer
    first_kv: Pointer
    """Gradient of the state before the first token."""
    prefix_k: Pointer
    suffix_k: Pointer
    first_k: Pointer
    weights: Pointer
    out: Pointer


class GradientSizes(NamedTuple):
    """Run-time sizes of `gate_gradient`."""

    length: int
    heads: int
    """Query heads."""
    state_heads: int
    rows: int
    """batch * state_heads"""
    features: int
    columns: int
    num_splits: int
    segments_per_split: int
    prefix_slots: int
    suffix_slots: int


@triton.jit
def _state_product(
    prefix, suffix, first, row, segment, before_fade, after_fade, columns, pointers, sizes, SPLIT_PREFIX: tl.constexpr,
    SPLIT_SUFFIX: tl.constexpr, EXPANDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return the product of the state before a segment with its gradient, for states of this many columns."""
    size = sizes.features * columns
    split = tl.minimum(segment // sizes.segments_per_split, sizes.num_splits - 1)
    earlier = tl.maximum(segment - 1, 0)
    earlier_split = tl.minimum(earlier // sizes.segments_per_split, sizes.num_splits - 1)
    local = prefix + (row * sizes.prefix_slots + segment) * size
    before = prefix + (row * sizes.prefix_slots + sizes.prefix_slots - sizes.num_splits + split) * size
    local_suffix = suffix + (row * sizes.suffix_slots + earlier) * size
    after = suffix + (row * sizes.suffix_slots + sizes.suffix_slots - sizes.num_splits + earlier_split) * size
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, size, BLOCK):
        offsets = start + tl.arange(0, BLOCK)  # [BLOCK]
        inside = offsets < size
        state = tl.load(local + offsets, mask=inside, other=0.0).to(tl.float32)  # [BLOCK]
        if SPLIT_PREFIX:
            state += before_fade * tl.load(before + offsets, mask=inside, other=0.0).to(tl.float32)  # [BLOCK]
        if segment == 0:
            grad = tl.load(first + row * size + offsets, mask=inside, other=0.0)  # [BLOCK]
        else:
            grad = tl.load(local_suffix + offsets, mask=inside, other=0.0).to(tl.float32)  # [BLOCK]
            if SPLIT_SUFFIX:
                grad += after_fade * tl.load(after + offsets, mask=inside, other=0.0).to(tl.float32)  # [BLOCK]
            if EXPANDS:  # both were multiplied by the weights of features
                weight = tl.load(pointers.weights + offsets // columns, mask=inside, other=0.0)  # [BLOCK]
                grad = tl.where(weight > 0, grad / tl.where(weight > 0, weight, 1.0), 0.0)
        total += state * grad
    return tl.sum(total, 0)


@triton.jit
def gate_gradient(
    pointers, strides, sizes, scale, HAS_STATE: tl.constexpr, NORMALIZE: tl.constexpr, EXPANDS: tl.constexpr,
    SPLIT_PREFIX: tl.constexpr, SPLIT_SUFFIX: tl.constexpr, SEGMENT: tl.constexpr, BLOCK_T: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of the rates of one segment, from the pairs that cross its first token."""
    segment, row = tl.program_id(0) // sizes.rows, tl.program_id(0) % sizes.rows
    row = row.to(tl.int64)
    batch, head = row // sizes.state_heads, row % sizes.state_heads
    crossing = 0.0
    if HAS_STATE:
        segments = tl.maximum((sizes.length + SEGMENT - 1) // SEGMENT, 1)
        each = sizes.segments_per_split
        start = tl.minimum(segment // each, sizes.num_splits - 1) * each
        before_fade = fade_between(pointers.borders, row, start, segment, sizes.length, SEGMENT)
        earlier = tl.maximum(segment - 1, 0)
        end = tl.minimum((tl.minimum(earlier // each, sizes.num_splits - 1) + 1) * each, segments)
        after_fade = fade_between(pointers.borders, row, earlier + 1, end, sizes.length, SEGMENT)
        crossing = _state_product(
            pointers.prefix_kv, pointers.suffix_kv, pointers.first_kv, row, segment, before_fade, after_fade,
            sizes.columns, pointers, sizes, SPLIT_PREFIX, SPLIT_SUFFIX, EXPANDS, BLOCK,
        )  # fmt: skip
        if NORMALIZE:
            crossing += _state_product(
                pointers.prefix_k, pointers.suffix_k, pointers.first_k, row, segment, before_fade, after_fade,
                1, pointers, sizes, SPLIT_PREFIX, SPLIT_SUFFIX, EXPANDS, BLOCK,
            )  # fmt: skip
        crossing *= scale
    place = tl.arange(0, BLOCK_T)
    tokens = segment * SEGMENT + place  # [BLOCK_T]
    inside = (place < SEGMENT) & (tokens < sizes.length)
    group = sizes.heads // sizes.state_heads
    lost = tl.zeros([BLOCK_T], tl.float64)
    for member in range(group):
        flat = (batch * sizes.heads + head * group + member) * sizes.length
        lost += tl.load(pointers.query_pairs + flat + tokens, mask=inside, other=0.0).to(tl.float64)  # [BLOCK_T]
    lost -= tl.load(pointers.key_pairs + row * sizes.length + tokens, mask=inside, other=0.0).to(tl.float64)
    before = tl.cumsum(lost, 0) - lost
    first = pointers.rates + batch * strides.batch + head * strides.head
    rates = tl.load(first + tokens.to(tl.int64) * strides.token, mask=inside, other=0.0)  # [BLOCK_T]
    found = tl.where(rates >= CLOSED, 0.0, before.to(tl.float32) - crossing)
    tl.store(pointers.out + row * sizes.length + tokens, found, mask=inside)  # [BLOCK_T]
