"""Helpers of all kernels: strided loads and stores, token ranges, causal order and decay."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from qkv.attention.internal import masking

MIN_NORM = tl.constexpr(masking.MIN_WEIGHT_SUM)


class Strides(NamedTuple):
    """Strides of a (batch, heads, time, dim) tensor whose last axis is contiguous."""

    batch: int
    head: int
    token: int


class HeadStrides(NamedTuple):
    """Strides of a tensor of single tokens, without the time axis."""

    batch: int
    head: int


class Scales(NamedTuple):
    """Factors of a pass."""

    a: float
    b: float
    score: float
    """Factor of a dot product inside `weight`."""
    result: float


class PassSizes(NamedTuple):
    """Run-time sizes of `output` and `grad_qk`; a and b are the two sides, see `chunk_state`."""

    a_length: int
    b_length: int
    rows: int
    """batch * a_heads"""
    a_heads: int
    b_heads: int
    state_heads: int
    num_splits: int
    segments_per_split: int
    prefix_slots: int
    forward_slots: int | None
    """States per row of the forward, for the gradient of a gate."""


Pointer = Any
"""A tensor on the host, an address in a cached launch, None if absent."""


@triton.jit
def program_and_row(rows):
    """Return the work item of this program, and its row: neighbors take the heads of the same tokens."""
    return tl.program_id(0) // rows, tl.program_id(0) % rows


@triton.jit
def load_rows(pointer, strides, batch, head, start, valid, limit, BLOCK: tl.constexpr, WHOLE: tl.constexpr):
    """Load BLOCK columns of each token after `start`: 0 where not valid and, unless WHOLE, beyond `limit` columns.

    Only the first token has a 64-bit offset: the others are near it, and addresses take registers.
    """
    columns = tl.arange(0, BLOCK)
    first = pointer + batch.to(tl.int64) * strides.batch + head.to(tl.int64) * strides.head
    first += tl.cast(start, tl.int64) * strides.token
    addresses = first + (tl.arange(0, valid.shape[0])[:, None] * strides.token + columns[None, :])  # [tokens, BLOCK]
    inside = valid[:, None]
    if not WHOLE:
        inside = inside & (columns < limit)[None, :]
    return tl.load(addresses, mask=inside, other=0.0)  # [tokens, BLOCK]


@triton.jit
def store_rows(pointer, x, strides, batch, head, start, valid, limit, BLOCK: tl.constexpr, WHOLE: tl.constexpr):
    """Store `x` at the addresses of `load_rows`."""
    columns = tl.arange(0, BLOCK)
    first = pointer + batch.to(tl.int64) * strides.batch + head.to(tl.int64) * strides.head
    first += tl.cast(start, tl.int64) * strides.token
    addresses = first + (tl.arange(0, valid.shape[0])[:, None] * strides.token + columns[None, :])  # [tokens, BLOCK]
    inside = valid[:, None]
    if not WHOLE:
        inside = inside & (columns < limit)[None, :]
    tl.store(addresses, x.to(pointer.dtype.element_ty), mask=inside)  # [tokens, BLOCK]


@triton.jit
def safe_inverse(norm, valid):
    """Return 1 / norm, and 0 for a query that attends to nothing."""
    attends = valid & ~(norm < MIN_NORM)  # a NaN is passed on
    return tl.where(attends, 1.0 / tl.where(attends, norm, 1.0), 0.0)


@triton.jit
def border_distance(tokens, segment, length, SEGMENT: tl.constexpr, TO_END: tl.constexpr):
    """Return the distance of each token to the last token of its segment, or to the token before the segment."""
    if TO_END:
        distance = tl.minimum((segment + 1) * SEGMENT, length) - 1 - tokens
    else:
        distance = tokens - segment * SEGMENT + 1
    return distance


@triton.jit
def token_ranges(start, segment, length, FLAGS: tl.constexpr, TILES: tl.constexpr):
    """Return two ranges of tokens to attend to: those visible to the whole block, and those on the diagonal."""
    if FLAGS.INTRA == "all":
        low, high, diagonal_low, diagonal_high = start * 0, length, start * 0, start * 0
    elif FLAGS.REVERSE:
        diagonal_low, high = start, tl.minimum((segment + 1) * TILES.SEGMENT, length)
        low = start + (TILES.BLOCK_A + TILES.BLOCK_B - 1) // TILES.BLOCK_B * TILES.BLOCK_B
        diagonal_high = tl.minimum(low, high)
    else:
        low, diagonal_high = segment * TILES.SEGMENT, tl.minimum(start + TILES.BLOCK_A, length)
        diagonal_low = low + (start - low) // TILES.BLOCK_B * TILES.BLOCK_B
        high = diagonal_low
    return low, high, diagonal_low, diagonal_high


@triton.jit
def causal_decay(
    w, tokens, others, rate, DIAGONAL: tl.constexpr, REVERSE: tl.constexpr, HAS_DECAY: tl.constexpr
):  # fmt: skip
    """Return w [BLOCK_A, BLOCK_B], faded by distance and zero for later (REVERSE: earlier) tokens."""
    if DIAGONAL or HAS_DECAY:
        distance = tokens[:, None] - others[None, :]  # [BLOCK_A, BLOCK_B]
        if REVERSE:
            distance = -distance
        if HAS_DECAY:
            w *= tl.exp(-rate * tl.maximum(distance, 0))
        if DIAGONAL:
            w = tl.where(distance >= 0, w, 0.0)
    return w


@triton.jit
def prefix_bases(batch, head, segment, sizes, PADDED_FEATURES: tl.constexpr):
    """Return the offsets of two states: the one before the segment in its split, and the one before the split."""
    state = batch.to(tl.int64) * sizes.state_heads + head * sizes.state_heads // sizes.a_heads
    local = (state * sizes.prefix_slots + segment) * PADDED_FEATURES
    before = state * sizes.prefix_slots + sizes.prefix_slots - sizes.num_splits
    before += tl.minimum(segment // sizes.segments_per_split, sizes.num_splits - 1)
    return local, before * PADDED_FEATURES


@triton.jit
def load_prefix(
    pointer, local, before, offsets, fade, LOCAL_PREFIX: tl.constexpr, SPLIT_PREFIX: tl.constexpr,
    HAS_GATE: tl.constexpr,
):  # fmt: skip
    """Load the state before the segment: the sum of what came before in the split, and before the split, faded."""
    if LOCAL_PREFIX and SPLIT_PREFIX and HAS_GATE:
        faded = tl.load(pointer + before + offsets) * fade.to(pointer.dtype.element_ty)  # shape of offsets
        prefix = tl.load(pointer + local + offsets) + faded  # shape of offsets
    elif LOCAL_PREFIX and SPLIT_PREFIX:
        prefix = tl.load(pointer + local + offsets) + tl.load(pointer + before + offsets)  # shape of offsets
    elif LOCAL_PREFIX:
        prefix = tl.load(pointer + local + offsets)  # shape of offsets
    else:
        prefix = tl.load(pointer + before + offsets)  # shape of offsets
    return prefix
