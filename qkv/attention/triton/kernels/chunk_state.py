"""Kernels that accumulate the recurrent state; the four passes of all feature-map kinds, forward and backward alike.

    chunk_state   sum over each segment's tokens of features(x) c', and of features(x) alone
    scan          running sum of those, from the first segment or, reversed, from the last
    output        (`output.py`) out_i = sum_j weight(a_i, b_j) c_j in the segment + features(a_i)' prefix
    grad_qk       (`grad_qk.py`) da_i = sum_j slope(a_i, b_j) (g_i.c_j + d_norm) b_j + features'(a_i) (prefix g_i)

Side a attends to side b, whose values are c: queries to keys in the forward, keys to queries in the backward. So the
backward shares the kernels: dv = output(k; q, dout), dq = grad_qk(q; k, v), dk = grad_qk(k; q, dout), where keys attend
to later queries (REVERSE). Segments are independent between the scans, so that a few heads fill a GPU too. There are no
atomic additions: the same input gives the same bits. A kind is a record of small functions (`KernelFunctions`;
`taylor.py`, `linear.py`). Grouped heads share keys, values and state; with decay every head has its own.

`inv_norm` multiplies a token's weight (1 / normalizer, in the backward), `d_norm` is the gradient of a normalizer. With
decay, a written token fades by its distance to the end of the segment, and what a token reads fades by its distance to
the start; reversed, the two are exchanged. With a gate (`gate.py`) the same, by its factors.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from qkv.attention.triton.kernels.common import (
    Pointer,
    Strides,
    border_distance,
    load_rows,
    program_and_row,
)
from qkv.attention.triton.kernels.gate import FROM_START, TO_END, early_fade, end_sum, gate_plane


class StatePointers(NamedTuple):
    """Tensors of `chunk_state`."""

    x: Pointer
    c: Pointer
    first_picks: Pointer
    second_picks: Pointer
    biases: Pointer
    weights: Pointer
    inv_norm: Pointer
    d_norm: Pointer
    mask: Pointer
    decay: Pointer
    gate: Pointer
    kv_sum: Pointer
    k_sum: Pointer
    prefix_kv: Pointer
    prefix_k: Pointer
    segment_fades: Pointer
    """Factor of the state before the split at each segment, written with a gate."""
    split_fades: Pointer
    """Factor of a state over each split, written with a gate."""


class StateStrides(NamedTuple):
    """Strides of `chunk_state`."""

    x: Strides
    c: Strides


class StateSizes(NamedTuple):
    """Run-time sizes of `chunk_state`."""

    length: int
    segments_per_split: int
    num_splits: int
    prefix_slots: int
    rows: int
    """batch * state_heads"""
    state_heads: int
    heads: int


@triton.jit
def chunk_state(
    pointers, strides, sizes, scale, KIND: tl.constexpr, FLAGS: tl.constexpr, TILES: tl.constexpr
):  # fmt: skip
    """Accumulate one tile of features of one split, for one block of value columns.

    FLAGS.LOCAL_PREFIX: store the state before each segment of the split, too.
    """
    split, row = program_and_row(sizes.rows)
    tile, value_block = tl.program_id(1) // TILES.VALUE_BLOCKS, tl.program_id(1) % TILES.VALUE_BLOCKS
    batch, state_head = row // sizes.state_heads, row % sizes.state_heads
    features = tile * TILES.BLOCK_F + tl.arange(0, TILES.BLOCK_F)  # [BLOCK_F]
    columns = value_block * TILES.BLOCK_V + tl.arange(0, TILES.BLOCK_V)  # [BLOCK_V]
    offsets = features[:, None] * (TILES.BLOCK_V * TILES.VALUE_BLOCKS) + columns[None, :]  # [BLOCK_F, BLOCK_V]
    kv_sum = tl.zeros([TILES.BLOCK_F, TILES.BLOCK_V], tl.float32)
    k_sum = tl.zeros([TILES.BLOCK_F], tl.float32)
    weight = tl.full([TILES.BLOCK_F], 1.0, tl.float32)
    if FLAGS.EXPANDS:
        weight = tl.load(pointers.weights + features)  # [BLOCK_F]
    rate = 0.0
    if FLAGS.HAS_DECAY:
        rate = tl.load(pointers.decay + state_head)  # scalar
    # loaded here: stores inside the loop keep the compiler from hoisting loads out of it
    first, second, first_bias, second_bias = KIND.load_picks(features, pointers, TILES)
    group = tl.maximum(sizes.heads // sizes.state_heads, 1)
    low = split * sizes.segments_per_split * TILES.SEGMENT
    high = tl.minimum(low + sizes.segments_per_split * TILES.SEGMENT, sizes.length)
    blocks = (high - low + TILES.BLOCK_A - 1) // TILES.BLOCK_A
    next_end = rate
    split_fade = 1.0
    if FLAGS.HAS_GATE:  # loaded one block ahead, so that no product waits for it
        last_block = low + (blocks - 1) * TILES.BLOCK_A
        next_end = end_sum(pointers.gate, row, tl.maximum(last_block if FLAGS.REVERSE else low, 0) // TILES.SEGMENT,
                           sizes.length, TILES.SEGMENT)  # scalar  # fmt: skip
        factors = gate_plane(pointers.gate, row, FROM_START if FLAGS.REVERSE else TO_END, sizes.length, TILES.SEGMENT)
        fades = pointers.segment_fades + row.to(tl.int64) * tl.maximum(tl.cdiv(sizes.length, TILES.SEGMENT), 1)
    for number in range(blocks * group):
        block = number // group
        if FLAGS.REVERSE:
            block = blocks - 1 - block
        start = low + block * TILES.BLOCK_A
        if FLAGS.LOCAL_PREFIX:
            border = block % (TILES.SEGMENT // TILES.BLOCK_A) == 0
            if FLAGS.REVERSE:
                border = ((block + 1) % (TILES.SEGMENT // TILES.BLOCK_A) == 0) | (block == blocks - 1)
            if border & (number % group == 0):
                base = (row.to(tl.int64) * sizes.prefix_slots + start // TILES.SEGMENT) * TILES.PADDED_FEATURES
                stored = weight
                if FLAGS.HAS_GATE:
                    early = early_fade(next_end)  # scalar
                    stored = weight * early
                    if tl.program_id(1) == 0:
                        tl.store(fades + start // TILES.SEGMENT, split_fade * early)  # scalar
                weighted = (kv_sum * stored[:, None]).to(pointers.prefix_kv.dtype.element_ty)
                prefix = pointers.prefix_kv + base * (TILES.BLOCK_V * TILES.VALUE_BLOCKS)
                tl.store(prefix + offsets, weighted)  # [BLOCK_F, BLOCK_V]
                if FLAGS.NORMALIZE:
                    tl.store(pointers.prefix_k + base + features, k_sum * stored)  # [BLOCK_F]
                if FLAGS.HAS_GATE:
                    fade = tl.exp2(tl.cast(-next_end, tl.float32))  # scalar
                    kv_sum *= fade
                    k_sum *= fade
                    split_fade *= fade
        if FLAGS.HAS_GATE:
            next_block = (number + 1) // group
            if FLAGS.REVERSE:
                next_block = tl.maximum(blocks - 1 - next_block, 0)
            next_block = tl.minimum(next_block, blocks - 1)
            next_end = end_sum(pointers.gate, row, (low + next_block * TILES.BLOCK_A) // TILES.SEGMENT,
                               sizes.length, TILES.SEGMENT)  # scalar  # fmt: skip
        head = state_head * sizes.heads // sizes.state_heads + number % group
        flat = (batch.to(tl.int64) * sizes.heads + head) * sizes.length
        tokens = start + tl.arange(0, TILES.BLOCK_A)  # [BLOCK_A]
        valid = tokens < sizes.length
        if FLAGS.HAS_MASK:
            mask_row = pointers.mask + batch.to(tl.int64) * sizes.length + tokens
            valid &= tl.load(mask_row, mask=valid, other=0) != 0  # [BLOCK_A]
        x = load_rows(pointers.x, strides.x, batch, head, start, valid, TILES.KEY_DIM, TILES.BLOCK_K,
                      TILES.KEY_DIM == TILES.BLOCK_K)  # [BLOCK_A, BLOCK_K]  # fmt: skip
        c = load_rows(pointers.c + value_block * TILES.BLOCK_V, strides.c, batch, head, start, valid,
                      TILES.VALUE_DIM - value_block * TILES.BLOCK_V, TILES.BLOCK_V,
                      TILES.VALUE_DIM % TILES.BLOCK_V == 0).to(TILES.DTYPE)  # [BLOCK_A, BLOCK_V]  # fmt: skip
        # transposed, so that the features are the left operand of the next product and stay in registers
        phi_t = KIND.features_t(
            x, first, second, first_bias, second_bias, features, scale, TILES
        )  # [BLOCK_F, BLOCK_A]  # fmt: skip
        if FLAGS.HAS_DECAY:
            phi_t *= tl.exp(
                -rate * border_distance(tokens, start // TILES.SEGMENT, sizes.length, TILES.SEGMENT, not FLAGS.REVERSE)
            )[None, :]
        if FLAGS.HAS_GATE:
            phi_t *= tl.load(factors + tokens).to(tl.float32)[None, :]  # [1, BLOCK_A]
        if FLAGS.NORMALIZE:
            if FLAGS.HAS_INV_NORM:
                d_norm = tl.load(pointers.d_norm + flat + tokens, mask=valid, other=0.0)  # [BLOCK_A]
                k_sum += tl.sum(phi_t * d_norm[None, :], 1)
            else:
                k_sum += tl.sum(tl.where(valid[None, :], phi_t, 0.0), 1)
        if FLAGS.HAS_INV_NORM:
            phi_t *= tl.load(pointers.inv_norm + flat + tokens, mask=valid, other=0.0)[None, :]  # [1, BLOCK_A]
        # [BLOCK_F, BLOCK_A] x [BLOCK_A, BLOCK_V]
        kv_sum = tl.dot(phi_t.to(TILES.DTYPE), c, kv_sum, input_precision=TILES.PRECISION)
    base = (row.to(tl.int64) * sizes.num_splits + split) * TILES.PADDED_FEATURES
    tl.store(pointers.kv_sum + base * (TILES.BLOCK_V * TILES.VALUE_BLOCKS) + offsets, kv_sum)  # [BLOCK_F, BLOCK_V]
    if FLAGS.NORMALIZE and value_block == 0:
        tl.store(pointers.k_sum + base + features, k_sum)  # [BLOCK_F]
    if FLAGS.HAS_GATE:
        if tl.program_id(1) == 0:
            tl.store(pointers.split_fades + row * sizes.num_splits + split, split_fade)  # scalar


class ScanPointers(NamedTuple):
    """Tensors of `scan`."""

    kv_sum: Pointer
    initial_kv: Pointer
    forward_kv: Pointer
    prefix_kv: Pointer
    final_kv: Pointer
    k_sum: Pointer
    initial_k: Pointer
    forward_k: Pointer
    prefix_k: Pointer
    final_k: Pointer
    decay: Pointer
    split_fades: Pointer
    weights: Pointer
    d_decay: Pointer


class ScanSizes(NamedTuple):
    """Run-time sizes of `scan`."""

    features: int
    columns: int
    segments: int
    prefix_slots: int
    length: int
    state_heads: int


@triton.jit
def _running_sum(
    sum_pointer, initial_pointer, forward_pointer, prefix_pointer, final_pointer, weights_pointer, d_decay_pointer,
    split_fades, rate, block, size, columns, segments, prefix_slots, length,
    EXPANDS: tl.constexpr, HAS_INITIAL: tl.constexpr, HAS_PREFIX: tl.constexpr, HAS_DECAY: tl.constexpr,
    HAS_GATE: tl.constexpr, REVERSE: tl.constexpr, GRAD_DECAY: tl.constexpr, SEGMENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sum one block of the `size` elements of each segment over the segments before it."""
    row = tl.program_id(0).to(tl.int64)
    offsets = block * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    inside = offsets < size
    total = tl.zeros([BLOCK], tl.float32)
    if HAS_INITIAL:
        total += tl.load(initial_pointer + row * size + offsets, mask=inside, other=0.0)  # [BLOCK]
    weight = tl.full([BLOCK], 1.0, tl.float32)
    if EXPANDS:
        weight = tl.load(weights_pointer + offsets // columns, mask=inside, other=0.0)  # [BLOCK]
    d_decay = tl.zeros([BLOCK], tl.float32)
    for number in range(segments):
        segment = number
        if REVERSE:
            segment = segments - 1 - number
        here = (row * segments + segment) * size + offsets
        if HAS_PREFIX:
            slot = (row * prefix_slots + prefix_slots - segments + segment) * size + offsets
            tl.store(
                prefix_pointer + slot, (total * weight).to(prefix_pointer.dtype.element_ty), mask=inside
            )  # [BLOCK]
        if HAS_DECAY:
            tokens = tl.minimum((segment + 1) * SEGMENT, length) - segment * SEGMENT
            total *= tl.exp(-rate * tokens)
            if GRAD_DECAY:
                d_decay += tokens * total * tl.load(forward_pointer + here, mask=inside, other=0.0)  # [BLOCK]
        if HAS_GATE:
            total *= tl.load(split_fades + row * segments + segment)  # scalar
        total += tl.load(sum_pointer + here, mask=inside, other=0.0)  # [BLOCK]
    tl.store(final_pointer + row * size + offsets, total, mask=inside)  # [BLOCK]
    if GRAD_DECAY:
        tl.store(d_decay_pointer + row * tl.num_programs(1) + tl.program_id(1), tl.sum(d_decay, 0))  # scalar


@triton.jit
def scan(
    pointers, sizes, NUM_KV_BLOCKS: tl.constexpr, EXPANDS: tl.constexpr, HAS_INITIAL: tl.constexpr,
    HAS_PREFIX: tl.constexpr, HAS_DECAY: tl.constexpr, HAS_GATE: tl.constexpr, REVERSE: tl.constexpr,
    GRAD_DECAY: tl.constexpr, SEGMENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute running sums over segments: of features times values, and of features alone, times the feature's weight.

    `d_decay` collects the gradient of the decay between segments.
    """
    block = tl.program_id(1)
    rate = 0.0
    if HAS_DECAY:
        rate = tl.load(pointers.decay + tl.program_id(0) % sizes.state_heads)  # scalar
    if block < NUM_KV_BLOCKS:
        _running_sum(
            pointers.kv_sum, pointers.initial_kv, pointers.forward_kv, pointers.prefix_kv, pointers.final_kv,
            pointers.weights, pointers.d_decay, pointers.split_fades, rate, block, sizes.features * sizes.columns,
            sizes.columns, sizes.segments, sizes.prefix_slots, sizes.length,
            EXPANDS, HAS_INITIAL, HAS_PREFIX, HAS_DECAY, HAS_GATE, REVERSE, GRAD_DECAY, SEGMENT, BLOCK,
        )  # fmt: skip
    else:
        _running_sum(
            pointers.k_sum, pointers.initial_k, pointers.forward_k, pointers.prefix_k, pointers.final_k,
            pointers.weights, pointers.d_decay, pointers.split_fades, rate, block - NUM_KV_BLOCKS, sizes.features, 1,
            sizes.segments, sizes.prefix_slots, sizes.length,
            EXPANDS, HAS_INITIAL, HAS_PREFIX, HAS_DECAY, HAS_GATE, REVERSE, GRAD_DECAY, SEGMENT, BLOCK,
        )  # fmt: skip
