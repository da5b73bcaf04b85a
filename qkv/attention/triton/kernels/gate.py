"""Kernels of a gate, a decay rate per token: factors before the passes, and its gradient after them.

    sums        d_t = sum of the rates from the first token of the segment up to t
    to_end      exp(d_t - d_end), the factor from t to the end of its segment
    from_start  exp(-d_t), the factor from the start of the segment to t

Sums are in powers of two, so that a factor is exp2 of a difference. A rate of CLOSED or more gives the factor 0: this
is how a document starts. With float32 operands the sums are float64.

The weight of a pair fades by exp(d_j - d_i), at most 1. Where a segment fades by no more than 2^WEAK, this is the
product of a factor per row and one per column: `to_end` of the key times exp(d_end - d_i), which no type underflows or
overflows, so no digit is lost. The factor per row multiplies a result once. In other segments it is formed pair by
pair. A state that is read in a weak segment is stored faded to its far end, so that it takes the same factor per row.

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
WEAK = tl.constexpr(48.0)
"""Largest sum over a segment, in powers of two, whose inverse may be a factor."""
SUMS = tl.constexpr(0)
TO_END = tl.constexpr(1)
FROM_START = tl.constexpr(2)
PLANES = tl.constexpr(3)
"""Numbers per token."""


class SumPointers(NamedTuple):
    """Tensors of `gate_sums`."""

    rates: Pointer
    numbers: Pointer


class SumSizes(NamedTuple):
    """Run-time sizes of `gate_sums`."""

    length: int
    rows: int
    """batch * heads"""
    heads: int


@triton.jit
def gate_plane(numbers, row, plane, length, SEGMENT: tl.constexpr):
    """Return the address of one number of each token of a row; rows are padded to whole segments."""
    padded = tl.maximum((length + SEGMENT - 1) // SEGMENT, 1) * SEGMENT
    return numbers + (row.to(tl.int64) * PLANES + plane) * padded


@triton.jit
def end_sum(numbers, row, segment, length, SEGMENT: tl.constexpr):
    """Load the sum over a segment."""
    return tl.load(gate_plane(numbers, row, SUMS, length, SEGMENT) + segment * SEGMENT + SEGMENT - 1)  # scalar


@triton.jit
def _exp2(x):
    """Return 2^x in float32; of a float64 x the whole part is exact, so that a large x loses no digits."""
    if x.dtype == tl.float64:
        whole = tl.floor(x)
        found = tl.exp2((x - whole).to(tl.float32)) * tl.exp2(whole.to(tl.float32))
    else:
        found = tl.exp2(x)
    return found


@triton.jit
def early_fade(end):
    """Return the part of a segment's factor that a stored state contains: all of it in a weak segment."""
    return tl.where(end <= WEAK, tl.exp2(tl.cast(-end, tl.float32)), 1.0)  # scalar


@triton.jit
def load_columns(plane, tokens, valid, MASKED: tl.constexpr, GATE: tl.constexpr):
    """Load what a pair needs of side b: a factor in a weak segment, otherwise a sum; hidden keys get the factor 0."""
    if MASKED and GATE == "weak":
        found = tl.load(plane + tokens, mask=valid, other=0.0)  # shape of tokens
    elif MASKED:
        found = tl.load(plane + tokens, mask=valid, other=float("-inf"))  # shape of tokens
    else:
        found = tl.load(plane + tokens)  # shape of tokens; padding has values, too
    return found


@triton.jit
def fade_pairs(w, rows, columns, REVERSE: tl.constexpr):
    """Return w [BLOCK_A, BLOCK_B], faded pair by pair, by the sums of its rows and columns."""
    if REVERSE:
        exponent = (rows[:, None] - columns[None, :]).to(tl.float32)  # [BLOCK_A, BLOCK_B]
    else:
        exponent = (columns[None, :] - rows[:, None]).to(tl.float32)  # [BLOCK_A, BLOCK_B]
    return w * tl.exp2(tl.minimum(exponent, 0.0))


@triton.jit
def causal(w, tokens, b_start, REVERSE: tl.constexpr):
    """Return w [BLOCK_A, BLOCK_B], zero for later (REVERSE: earlier) tokens; a comparison with constants is cheap."""
    rows, columns = (tokens - b_start)[:, None], tl.arange(0, w.shape[1])[None, :]
    if REVERSE:
        w = tl.where(rows <= columns, w, 0.0)
    else:
        w = tl.where(rows >= columns, w, 0.0)
    return w


@triton.jit
def state_fade(rows, end, REVERSE: tl.constexpr):
    """Return the factor of a state in a segment that is not weak: from its near end to each token."""
    if REVERSE:
        exponent = rows - end
    else:
        exponent = -rows
    return tl.exp2(exponent.to(tl.float32))  # shape of rows


@triton.jit
def row_fade(rows, end, weak, REVERSE: tl.constexpr):
    """Return the factor of all that a token reads in a weak segment: the inverse of its `to_end` or `from_start`."""
    if REVERSE:
        exponent = rows
    else:
        exponent = end - rows
    return tl.where(weak, _exp2(tl.minimum(exponent, WEAK)), 1.0)  # shape of rows


@triton.jit
def gate_sums(pointers, strides, sizes, SEGMENT: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """Compute the numbers of each token in one segment of several rows; tokens of the padding have rate 0."""
    blocks = (sizes.rows + ROWS - 1) // ROWS
    segment = tl.program_id(0) // blocks
    rows = tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
    place = tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    tokens = segment * SEGMENT + place
    inside = (place < SEGMENT) & (rows < sizes.rows)  # [ROWS, BLOCK]
    batch, head = (rows // sizes.heads).to(tl.int64), (rows % sizes.heads).to(tl.int64)
    given = pointers.rates + batch * strides.batch + head * strides.head + tokens.to(tl.int64) * strides.token
    rates = tl.load(given, mask=inside & (tokens < sizes.length), other=0.0).to(tl.float64)  # [ROWS, BLOCK]
    powers = tl.minimum(rates, CLOSED, propagate_nan=tl.PropagateNan.ALL) * LOG2_E
    sums = tl.cumsum(powers, 1)
    kept = sums.to(pointers.numbers.dtype.element_ty)
    end = tl.sum(tl.where(place == SEGMENT - 1, kept, 0.0), 1)[:, None]  # [ROWS, 1]
    padded = tl.maximum((sizes.length + SEGMENT - 1) // SEGMENT, 1) * SEGMENT
    here = pointers.numbers + rows.to(tl.int64) * (PLANES * padded) + tokens
    tl.store(here + SUMS * padded, kept, mask=inside)  # [ROWS, BLOCK]
    tl.store(here + TO_END * padded, _exp2(kept - end), mask=inside)  # [ROWS, BLOCK]
    tl.store(here + FROM_START * padded, _exp2(-kept), mask=inside)  # [ROWS, BLOCK]


@triton.jit
def border_product(
    local, before, local_suffix, after, fade, after_fade, weights, columns, columns_of_all,
    FEATURES: tl.constexpr, BLOCK_F: tl.constexpr, SPLIT_PREFIX: tl.constexpr, SPLIT_SUFFIX: tl.constexpr,
    EXPANDS: tl.constexpr,
):  # fmt: skip
    """Return the product of the state at a border of segments with its gradient, for these columns.

    Both were multiplied by the weights of features when they were stored, and may have two parts: see `load_prefix`.
    """
    total = tl.zeros([BLOCK_F], tl.float32)
    for start in range(0, FEATURES, BLOCK_F):
        features = start + tl.arange(0, BLOCK_F)  # [BLOCK_F]
        offsets = features[:, None] * columns_of_all + columns[None, :]  # [BLOCK_F, columns]
        state, grad = tl.load(local + offsets).to(tl.float32), tl.load(local_suffix + offsets).to(tl.float32)
        if SPLIT_PREFIX:
            state += fade * tl.load(before + offsets).to(tl.float32)  # [BLOCK_F, columns]
        if SPLIT_SUFFIX:
            grad += after_fade * tl.load(after + offsets).to(tl.float32)  # [BLOCK_F, columns]
        found = tl.sum(state * grad, 1)  # [BLOCK_F]
        if EXPANDS:
            weight = tl.load(weights + features)  # [BLOCK_F]
            found = tl.where(weight > 0, found / tl.where(weight > 0, weight, 1.0), 0.0)
        total += found
    return tl.sum(total, 0)  # scalar


class GradientPointers(NamedTuple):
    """Tensors of `gate_gradient`."""

    rates: Pointer
    query_pairs: Pointer
    """Sum of P over the keys before each query."""
    key_pairs: Pointer
    """Sum of P over the queries after each key."""
    crossing: Pointer
    """Sum of P over the pairs that cross the end of each segment, in parts."""
    first_crossing: Pointer
    """The same of the state before the first token."""
    out: Pointer


class GradientSizes(NamedTuple):
    """Run-time sizes of `gate_gradient`."""

    length: int
    heads: int
    """Query heads."""
    state_heads: int
    rows: int
    """batch * state_heads"""


@triton.jit
def gate_gradient(
    pointers, strides, sizes, scale, HAS_STATE: tl.constexpr, HAS_FIRST: tl.constexpr, PARTS: tl.constexpr,
    SEGMENT: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of the rates in one segment of several rows, from the pairs that cross its first token."""
    blocks = (sizes.rows + ROWS - 1) // ROWS
    segment, segments = tl.program_id(0) // blocks, tl.maximum((sizes.length + SEGMENT - 1) // SEGMENT, 1)
    rows = (tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS)[:, None]).to(tl.int64)  # [ROWS, 1]
    present = rows < sizes.rows
    crossing = tl.zeros([ROWS, 1], tl.float32)
    if HAS_STATE:
        for part in tl.static_range(PARTS):
            place = (rows * segments + segment - 1) * PARTS + part
            crossing += tl.load(pointers.crossing + place, mask=present & (segment > 0), other=0.0)  # [ROWS, 1]
        if HAS_FIRST:
            crossing += tl.load(pointers.first_crossing + rows, mask=present & (segment == 0), other=0.0)  # [ROWS, 1]
        crossing *= scale
    place = tl.arange(0, BLOCK)[None, :]
    tokens = segment * SEGMENT + place  # [1, BLOCK]
    inside = (place < SEGMENT) & (tokens < sizes.length) & present  # [ROWS, BLOCK]
    batch, head = rows // sizes.state_heads, rows % sizes.state_heads
    group = sizes.heads // sizes.state_heads
    lost = tl.zeros([ROWS, BLOCK], tl.float64)
    for member in range(group):
        flat = (batch * sizes.heads + head * group + member) * sizes.length
        lost += tl.load(pointers.query_pairs + flat + tokens, mask=inside, other=0.0).to(tl.float64)  # [ROWS, BLOCK]
    lost -= tl.load(pointers.key_pairs + rows * sizes.length + tokens, mask=inside, other=0.0).to(tl.float64)
    before = tl.cumsum(lost, 1) - lost
    first = pointers.rates + batch * strides.batch + head * strides.head
    rates = tl.load(first + tokens.to(tl.int64) * strides.token, mask=inside, other=0.0)  # [ROWS, BLOCK]
    found = tl.where(rates >= CLOSED, 0.0, before.to(tl.float32) - crossing)
    tl.store(pointers.out + rows * sizes.length + tokens, found, mask=inside)  # [ROWS, BLOCK]
