"""What every kernel of the feature-map kinds needs: its tokens, where their numbers lie, and whom they see."""

import triton
import triton.language as tl

from qkv.attention.internal import masking

NOTHING = tl.constexpr(masking.NOTHING)


@triton.jit
def job_and_row(rows):
    """What this program does, and for which row: programs that run together take the heads of the same tokens."""
    return tl.program_id(0) // rows, tl.program_id(0) % rows


@triton.jit
def load_rows(
    pointer, batch, head, first, stride_b, stride_h, stride_t, valid, room, SIZE: tl.constexpr, WHOLE: tl.constexpr
):
    """SIZE numbers of each token from `first` on, zero where not valid and, unless WHOLE, beyond `room` numbers.

    Only the first token's place is counted in 64 bits: the others are near it, and addresses take registers.
    """
    columns = tl.arange(0, SIZE)
    start = pointer + batch.to(tl.int64) * stride_b + head.to(tl.int64) * stride_h
    start += tl.cast(first, tl.int64) * stride_t
    places = start + (tl.arange(0, valid.shape[0])[:, None] * stride_t + columns[None, :])
    there = valid[:, None]
    if not WHOLE:
        there = there & (columns < room)[None, :]
    return tl.load(places, mask=there, other=0.0)


@triton.jit
def store_rows(pointer, x, batch, head, first, stride_b, stride_h, stride_t, there, room,
           SIZE: tl.constexpr, WHOLE: tl.constexpr):  # fmt: skip
    """The other way of `load_rows`."""
    columns = tl.arange(0, SIZE)
    start = pointer + batch.to(tl.int64) * stride_b + head.to(tl.int64) * stride_h
    start += tl.cast(first, tl.int64) * stride_t
    places = start + (tl.arange(0, there.shape[0])[:, None] * stride_t + columns[None, :])
    kept = there[:, None]
    if not WHOLE:
        kept = kept & (columns < room)[None, :]
    tl.store(places, x.to(pointer.dtype.element_ty), mask=kept)


@triton.jit
def inverted(norm, valid):
    """1 / norm, and nothing for a query that sees nothing."""
    sees = valid & ~(norm < NOTHING)  # a NaN is passed on
    return tl.where(sees, 1.0 / tl.where(sees, norm, 1.0), 0.0)


@triton.jit
def ages(tokens, segment, length, SEGMENT: tl.constexpr, FALLING: tl.constexpr):
    """How far a token is from the border of its segment: its end (falling) or the token before its start (rising)."""
    if FALLING:
        age = tl.minimum((segment + 1) * SEGMENT, length) - 1 - tokens
    else:
        age = tokens - segment * SEGMENT + 1
    return age


@triton.jit
def reach(
    here, segment, length, INSIDE: tl.constexpr, REVERSE: tl.constexpr, SEGMENT: tl.constexpr,
    A_BLOCK: tl.constexpr, B_BLOCK: tl.constexpr,
):  # fmt: skip
    """The tokens that this block attends to one by one: those that it sees whole, and those in which order matters."""
    if INSIDE == "all":
        low, high, ordered_low, ordered_high = here * 0, length, here * 0, here * 0
    elif REVERSE:
        ordered_low, high = here, tl.minimum((segment + 1) * SEGMENT, length)
        low = here + (A_BLOCK + B_BLOCK - 1) // B_BLOCK * B_BLOCK
        ordered_high = tl.minimum(low, high)
    else:
        low, ordered_high = segment * SEGMENT, tl.minimum(here + A_BLOCK, length)
        ordered_low = low + (here - low) // B_BLOCK * B_BLOCK
        high = ordered_low
    return low, high, ordered_low, ordered_high


@triton.jit
def visible(w, tokens, others, rate, ORDERED: tl.constexpr, REVERSE: tl.constexpr, DECAYS: tl.constexpr):
    """Faded by distance, and in order: zero for what comes later (or, reversed, earlier)."""
    if ORDERED or DECAYS:
        distance = tokens[:, None] - others[None, :]
        if REVERSE:
            distance = -distance
        if DECAYS:
            w *= tl.exp(-rate * tl.maximum(distance, 0))
        if ORDERED:
            w = tl.where(distance >= 0, w, 0.0)
    return w


@triton.jit
def both(pointer, local, before, places, LOCAL: tl.constexpr, BEFORE: tl.constexpr):
    """What came before in the stretch, and before the stretch."""
    if LOCAL and BEFORE:
        kept = tl.load(pointer + local + places) + tl.load(pointer + before + places)
    elif LOCAL:
        kept = tl.load(pointer + local + places)
    else:
        kept = tl.load(pointer + before + places)
    return kept
