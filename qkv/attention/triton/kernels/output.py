"""Kernel of the outputs, and of the gradients of values: a block of tokens reads its segment and the state.

out_i = sum_j weight(a_i, b_j) c_j in the segment + features(a_i)' prefix
"""

from typing import NamedTuple

import triton
import triton.language as tl

from qkv.attention.triton.kernels.common import (
    Pointer,
    Strides,
    border_distance,
    causal_decay,
    load_prefix,
    load_rows,
    prefix_bases,
    program_and_row,
    safe_inverse,
    store_rows,
    token_ranges,
)
from qkv.attention.triton.kernels.gate import (
    FROM_START,
    SUMS,
    TO_END,
    WEAK,
    border_product,
    causal,
    end_sum,
    fade_pairs,
    gate_plane,
    load_columns,
    row_fade,
    state_fade,
)
from qkv.attention.triton.kernels.linear import lane_sums


class OutputPointers(NamedTuple):
    """Tensors of `output`."""

    a: Pointer
    b: Pointer
    c: Pointer
    first_picks: Pointer
    second_picks: Pointer
    biases: Pointer
    inv_norm: Pointer
    """1 / normalizer of each query, read in the backward."""
    mask: Pointer
    decay: Pointer
    gate: Pointer
    segment_fades: Pointer
    prefix_kv: Pointer
    prefix_k: Pointer
    weights: Pointer
    forward_fades: Pointer
    forward_kv: Pointer
    """States of the forward, read for the gradient of a gate."""
    forward_k: Pointer
    crossing: Pointer
    """Products of these with their gradients, written for the gradient of a gate."""
    out: Pointer
    out_inv_norm: Pointer
    """1 / normalizer of each query, written in the forward."""


class OutputStrides(NamedTuple):
    """Strides of `output`."""

    a: Strides
    b: Strides
    c: Strides
    out: Strides


@triton.jit
def output(
    pointers, strides, sizes, scales, KIND: tl.constexpr, FLAGS: tl.constexpr, TILES: tl.constexpr
):  # fmt: skip
    """Compute a block of outputs or, reversed, of gradients of the values."""
    work_item, row = program_and_row(sizes.rows)
    value_block, start = work_item % TILES.VALUE_BLOCKS, work_item // TILES.VALUE_BLOCKS * TILES.BLOCK_A
    batch, a_head = row // sizes.a_heads, row % sizes.a_heads
    tokens, segment = start + tl.arange(0, TILES.BLOCK_A), start // TILES.SEGMENT  # [BLOCK_A], scalar
    valid = tokens < sizes.a_length
    if FLAGS.HAS_MASK and FLAGS.REVERSE:
        mask_row = pointers.mask + batch.to(tl.int64) * sizes.a_length + tokens
        valid &= tl.load(mask_row, mask=valid, other=0) != 0  # [BLOCK_A]
    raw = load_rows(pointers.a, strides.a, batch, a_head, start, valid, TILES.KEY_DIM, TILES.BLOCK_K,
                    TILES.KEY_DIM == TILES.BLOCK_K)  # [BLOCK_A, BLOCK_K]  # fmt: skip
    a = KIND.map_input(raw, valid, scales.a, False, TILES).to(TILES.DTYPE)  # [BLOCK_A, BLOCK_K]
    columns_left = TILES.VALUE_DIM - value_block * TILES.BLOCK_V
    out = tl.zeros([TILES.BLOCK_A, TILES.BLOCK_V], tl.float32)
    norm = tl.zeros([TILES.BLOCK_A], tl.float32)
    rate = 0.0
    if FLAGS.HAS_DECAY:
        rate = tl.load(pointers.decay + a_head)  # scalar
    gate_row = batch * sizes.state_heads + a_head * sizes.state_heads // sizes.a_heads
    before_fade, columns = 1.0, pointers.gate
    if FLAGS.HAS_GATE:
        end = end_sum(pointers.gate, gate_row, segment, sizes.a_length, TILES.SEGMENT)  # scalar
        rate = tl.load(gate_plane(pointers.gate, gate_row, SUMS, sizes.a_length, TILES.SEGMENT) + tokens)  # [BLOCK_A]
        if FLAGS.SPLIT_PREFIX:
            segments = tl.maximum(tl.cdiv(sizes.a_length, TILES.SEGMENT), 1)
            before_fade = tl.load(pointers.segment_fades + gate_row * segments + segment).to(tl.float32)  # scalar
        weak = end <= WEAK
        plane = tl.where(weak, FROM_START if FLAGS.REVERSE else TO_END, SUMS)
        columns = gate_plane(pointers.gate, gate_row, plane, sizes.a_length, TILES.SEGMENT)
    if FLAGS.LOCAL_PREFIX or FLAGS.SPLIT_PREFIX:
        local, before = prefix_bases(batch, a_head, segment, sizes, TILES.PADDED_FEATURES)
        for tile in range(TILES.PURE_TILES):
            out, norm = _read_state(
                out, norm, a, raw, tile, value_block, local, before, before_fade, pointers, scales, True, KIND, FLAGS,
                TILES,
            )  # fmt: skip
        for tile in range(TILES.PURE_TILES, TILES.FEATURE_TILES):
            out, norm = _read_state(
                out, norm, a, raw, tile, value_block, local, before, before_fade, pointers, scales, False, KIND, FLAGS,
                TILES,
            )  # fmt: skip
        if FLAGS.HAS_DECAY:
            fade = tl.exp(-rate * border_distance(tokens, segment, sizes.a_length, TILES.SEGMENT, FLAGS.REVERSE))
            out *= fade[:, None]
            norm *= fade
    if FLAGS.INTRA != "none":
        low, high, diagonal_low, diagonal_high = token_ranges(start, segment, sizes.b_length, FLAGS, TILES)
        if FLAGS.HAS_GATE:
            if weak:
                out, norm = _attend_segment(
                    out, norm, a, tokens, start, segment, value_block, batch, a_head, columns_left, rate, columns,
                    pointers, strides, sizes, scales, "weak", KIND, FLAGS, TILES,
                )  # fmt: skip
            else:
                fade = state_fade(rate, end, FLAGS.REVERSE)  # [BLOCK_A]
                out *= fade[:, None]
                norm *= fade
                out, norm = _attend_segment(
                    out, norm, a, tokens, start, segment, value_block, batch, a_head, columns_left, rate, columns,
                    pointers, strides, sizes, scales, "strong", KIND, FLAGS, TILES,
                )  # fmt: skip
        else:  # the loops of `_attend_segment`, written out: the machine code of a call follows even their place
            for member in range(tl.maximum(sizes.b_heads // sizes.a_heads, 1)):
                b_head = a_head * sizes.b_heads // sizes.a_heads + member
                for b_start in range(low, high, TILES.BLOCK_B):
                    out, norm = _attend_block(
                        out, norm, a, tokens, b_start, pointers.c + value_block * TILES.BLOCK_V, batch, b_head,
                        columns_left, rate, columns, pointers, strides, sizes, scales, False, "none", KIND, FLAGS,
                        TILES,
                    )  # fmt: skip
                for b_start in range(diagonal_low, diagonal_high, TILES.BLOCK_B):
                    out, norm = _attend_block(
                        out, norm, a, tokens, b_start, pointers.c + value_block * TILES.BLOCK_V, batch, b_head,
                        columns_left, rate, columns, pointers, strides, sizes, scales, True, "none", KIND, FLAGS,
                        TILES,
                    )  # fmt: skip
    if FLAGS.HAS_GATE:
        row_factor = row_fade(rate, end, weak, FLAGS.REVERSE)  # [BLOCK_A]
        result = row_factor * scales.result
        if FLAGS.NORMALIZE:
            inv_norm = safe_inverse(norm * row_factor, valid)
            result *= inv_norm
        out *= result[:, None]
    else:
        out *= scales.result
        if FLAGS.NORMALIZE:
            inv_norm = safe_inverse(norm, valid)
            out *= inv_norm[:, None]
    if FLAGS.NORMALIZE:
        if value_block == 0:
            flat = (batch.to(tl.int64) * sizes.a_heads + a_head) * sizes.a_length
            tl.store(pointers.out_inv_norm + flat + tokens, inv_norm, mask=tokens < sizes.a_length)  # [BLOCK_A]
    if FLAGS.HAS_MASK and FLAGS.REVERSE:
        out = tl.where(valid[:, None], out, 0.0)
    store_rows(pointers.out + value_block * TILES.BLOCK_V, out, strides.out, batch, a_head, start,
               tokens < sizes.a_length, columns_left, TILES.BLOCK_V,
               TILES.VALUE_DIM % TILES.BLOCK_V == 0)  # [BLOCK_A, BLOCK_V]  # fmt: skip
    if FLAGS.CROSSING and (start + TILES.BLOCK_A) % TILES.SEGMENT == 0:
        if (segment + 1) * TILES.SEGMENT < sizes.a_length:
            _store_crossing(value_block, gate_row, segment, local, before, end, before_fade, pointers, sizes,
                            FLAGS, TILES)  # fmt: skip


@triton.jit
def _store_crossing(
    value_block, row, segment, local, before, end, before_fade, pointers, sizes, FLAGS: tl.constexpr,
    TILES: tl.constexpr,
):  # fmt: skip
    """Store the product of the state after a segment with its gradient, for one block of value columns."""
    segments = tl.cdiv(sizes.a_length, TILES.SEGMENT)
    next_end = end_sum(pointers.gate, row, segment + 1, sizes.a_length, TILES.SEGMENT)  # scalar
    split = tl.minimum((segment + 1) // sizes.segments_per_split, sizes.num_splits - 1)
    slots = row.to(tl.int64) * sizes.forward_slots
    place = (slots + segment + 1) * TILES.PADDED_FEATURES
    place_before = (slots + sizes.forward_slots - sizes.num_splits + split) * TILES.PADDED_FEATURES
    fade = 1.0
    if FLAGS.FORWARD_SPLIT:
        fade = tl.load(pointers.forward_fades + row * segments + segment + 1).to(tl.float32)  # scalar
    stride = TILES.BLOCK_V * TILES.VALUE_BLOCKS
    columns = value_block * TILES.BLOCK_V + tl.arange(0, TILES.BLOCK_V)  # [BLOCK_V]
    crossing = border_product(
        pointers.forward_kv + place * stride, pointers.forward_kv + place_before * stride,
        pointers.prefix_kv + local * stride, pointers.prefix_kv + before * stride, fade, before_fade,
        pointers.weights, columns, stride, TILES.PADDED_FEATURES, TILES.BLOCK_F, FLAGS.FORWARD_SPLIT,
        FLAGS.SPLIT_PREFIX, FLAGS.EXPANDS,
    )  # fmt: skip
    if FLAGS.SUM_NORMS:
        if value_block == 0:
            crossing += border_product(
                pointers.forward_k + place, pointers.forward_k + place_before, pointers.prefix_k + local,
                pointers.prefix_k + before, fade, before_fade, pointers.weights, tl.arange(0, 1), 1,
                TILES.PADDED_FEATURES, TILES.BLOCK_F, FLAGS.FORWARD_SPLIT, FLAGS.SPLIT_PREFIX, FLAGS.EXPANDS,
            )  # fmt: skip
    early = tl.where(end <= WEAK, end, 0.0) + tl.where(next_end <= WEAK, next_end, 0.0)  # what the two contain
    crossing *= tl.exp2(early.to(tl.float32))
    tl.store(pointers.crossing + (row * segments + segment) * TILES.VALUE_BLOCKS + value_block, crossing)  # scalar


@triton.jit
def _read_state(
    out, norm, a, raw, tile, value_block, local, before, before_fade, pointers, scales, PURE: tl.constexpr,
    KIND: tl.constexpr, FLAGS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Add to `out` and `norm` what one tile of features reads from the state."""
    features = tile * TILES.BLOCK_F + tl.arange(0, TILES.BLOCK_F)  # [BLOCK_F]
    columns = value_block * TILES.BLOCK_V + tl.arange(0, TILES.BLOCK_V)  # [BLOCK_V]
    phi = a
    if FLAGS.EXPANDS:
        phi = KIND.features(raw.to(TILES.DTYPE), features, pointers, scales.a, PURE, TILES)  # [BLOCK_A, BLOCK_F]
    if FLAGS.NORMALIZE:
        k_sum = load_prefix(
            pointers.prefix_k, local, before, features, before_fade, FLAGS.LOCAL_PREFIX, FLAGS.SPLIT_PREFIX,
            FLAGS.HAS_GATE,
        )  # [BLOCK_F]  # fmt: skip
        norm += tl.sum(phi * k_sum[None, :], 1)
    stride = TILES.BLOCK_V * TILES.VALUE_BLOCKS
    offsets = features[:, None] * stride + columns[None, :]
    kv_sum = load_prefix(
        pointers.prefix_kv, local * stride, before * stride, offsets, before_fade, FLAGS.LOCAL_PREFIX,
        FLAGS.SPLIT_PREFIX, FLAGS.HAS_GATE,
    )  # [BLOCK_F, BLOCK_V]  # fmt: skip
    # [BLOCK_A, BLOCK_F] x [BLOCK_F, BLOCK_V]
    return tl.dot(phi.to(TILES.DTYPE), kv_sum, out, input_precision=TILES.PRECISION), norm


@triton.jit
def _attend_segment(
    out, norm, a, tokens, start, segment, value_block, batch, a_head, columns_left, rate, columns, pointers, strides,
    sizes, scales, GATE: tl.constexpr, KIND: tl.constexpr, FLAGS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Add to `out` and `norm` the tokens of side b that are attended to one by one."""
    sums = tl.zeros([TILES.BLOCK_A, 8], tl.float32)
    low, high, diagonal_low, diagonal_high = token_ranges(start, segment, sizes.b_length, FLAGS, TILES)
    for member in range(tl.maximum(sizes.b_heads // sizes.a_heads, 1)):
        b_head = a_head * sizes.b_heads // sizes.a_heads + member
        for b_start in range(low, high, TILES.BLOCK_B):
            out, sums = _attend_block(
                out, sums, a, tokens, b_start, pointers.c + value_block * TILES.BLOCK_V, batch, b_head,
                columns_left, rate, columns, pointers, strides, sizes, scales, False, GATE, KIND, FLAGS, TILES,
            )  # fmt: skip
        for b_start in range(diagonal_low, diagonal_high, TILES.BLOCK_B):
            out, sums = _attend_block(
                out, sums, a, tokens, b_start, pointers.c + value_block * TILES.BLOCK_V, batch, b_head,
                columns_left, rate, columns, pointers, strides, sizes, scales, True, GATE, KIND, FLAGS, TILES,
            )  # fmt: skip
    return out, norm + tl.sum(sums, 1)


@triton.jit
def _attend_block(
    out, norm, a, tokens, b_start, c_pointer, batch, b_head, columns_left, rate, columns, pointers, strides, sizes,
    scales, DIAGONAL: tl.constexpr, GATE: tl.constexpr, KIND: tl.constexpr, FLAGS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Add to `out` and `norm` one block of tokens of side b, each by its weight."""
    others = b_start + tl.arange(0, TILES.BLOCK_B)  # [BLOCK_B]
    valid = others < sizes.b_length
    if FLAGS.HAS_MASK and not FLAGS.REVERSE:
        mask_row = pointers.mask + batch.to(tl.int64) * sizes.b_length + others
        valid &= tl.load(mask_row, mask=valid, other=0) != 0  # [BLOCK_B]
    b = load_rows(pointers.b, strides.b, batch, b_head, b_start, valid, TILES.KEY_DIM, TILES.BLOCK_K,
                  TILES.KEY_DIM == TILES.BLOCK_K)  # [BLOCK_B, BLOCK_K]  # fmt: skip
    b = KIND.map_input(b, valid, scales.b, FLAGS.HAS_MASK or FLAGS.INTRA == "all", TILES).to(TILES.DTYPE)
    c = load_rows(c_pointer, strides.c, batch, b_head, b_start, valid, columns_left,
                  TILES.BLOCK_V, TILES.VALUE_DIM % TILES.BLOCK_V == 0)  # [BLOCK_B, BLOCK_V]  # fmt: skip
    # [BLOCK_A, BLOCK_K] x [BLOCK_K, BLOCK_B]
    w = KIND.weight(tl.dot(a, tl.trans(b), input_precision=TILES.PRECISION), scales.score)
    if FLAGS.HAS_GATE:
        column = load_columns(columns, others, valid, FLAGS.HAS_MASK and not FLAGS.REVERSE, GATE)  # [BLOCK_B]
    if GATE == "none":
        w = causal_decay(
            w, tokens, others, rate, DIAGONAL, FLAGS.REVERSE, FLAGS.HAS_DECAY and FLAGS.INTRA == "causal"
        )  # [BLOCK_A, BLOCK_B]  # fmt: skip
    elif DIAGONAL:
        w = causal(w, tokens, b_start, FLAGS.REVERSE)  # [BLOCK_A, BLOCK_B]
    if GATE == "weak":
        factor = column.to(tl.float32)  # [BLOCK_B]
        if FLAGS.HAS_INV_NORM:
            flat = (batch.to(tl.int64) * sizes.b_heads + b_head) * sizes.b_length
            factor *= tl.load(pointers.inv_norm + flat + others, mask=valid, other=0.0)  # [BLOCK_B]
        w *= factor[None, :]
    if GATE == "strong":
        w = fade_pairs(w, rate, column, FLAGS.REVERSE)
    if FLAGS.HAS_INV_NORM and GATE != "weak":
        flat = (batch.to(tl.int64) * sizes.b_heads + b_head) * sizes.b_length
        w *= tl.load(pointers.inv_norm + flat + others, mask=valid, other=0.0)[None, :]  # [1, BLOCK_B]
    if FLAGS.NORMALIZE:
        if FLAGS.HAS_MASK or FLAGS.INTRA == "all":  # an absent key weighs 1, not 0, in a polynomial
            w = tl.where(valid[None, :], w, 0.0)
        if GATE == "none":
            norm += tl.sum(w, 1)
        else:
            norm += lane_sums(w)
    # [BLOCK_A, BLOCK_B] x [BLOCK_B, BLOCK_V]
    return tl.dot(w.to(TILES.DTYPE), c.to(TILES.DTYPE), out, input_precision=TILES.PRECISION), norm
