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
from qkv.attention.triton.kernels.gate import anchor_fade, anchor_sum, border_fade, load_sums, split_fade


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
    gate_sums: Pointer
    gate_borders: Pointer
    prefix_kv: Pointer
    prefix_k: Pointer
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
    before_fade, anchor = 1.0, 0.0
    if FLAGS.HAS_GATE:
        anchor = anchor_sum(pointers.gate_sums, gate_row, start, segment, sizes.a_length, FLAGS.REVERSE, TILES)
        rate = load_sums(pointers.gate_sums, gate_row, tokens, valid, sizes.a_length, FLAGS.REVERSE)  # [BLOCK_A]
        if FLAGS.SPLIT_PREFIX:
            before_fade = split_fade(pointers.gate_borders, gate_row, segment, sizes, TILES.SEGMENT, FLAGS.REVERSE)
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
        if FLAGS.HAS_GATE:
            fade = border_fade(
                anchor, pointers.gate_sums, gate_row, segment, sizes.a_length, TILES.SEGMENT, FLAGS.REVERSE
            )  # scalar  # fmt: skip
            out *= fade
            norm *= fade
    if FLAGS.INTRA != "none":
        low, high, diagonal_low, diagonal_high = token_ranges(start, segment, sizes.b_length, FLAGS, TILES)
        if FLAGS.HAS_GATE:
            for member in range(tl.maximum(sizes.b_heads // sizes.a_heads, 1)):
                b_head = a_head * sizes.b_heads // sizes.a_heads + member
                for b_start in range(low, high, TILES.BLOCK_B):
                    out, norm = _attend_block(
                        out, norm, a, tokens, b_start, pointers.c + value_block * TILES.BLOCK_V, batch, b_head,
                        columns_left, rate, anchor, pointers, strides, sizes, scales, False, KIND, FLAGS, TILES,
                    )  # fmt: skip
            fade = anchor_fade(rate, anchor, FLAGS.REVERSE)  # [BLOCK_A]
            out *= fade[:, None]
            norm *= fade
        for member in range(tl.maximum(sizes.b_heads // sizes.a_heads, 1)):
            b_head = a_head * sizes.b_heads // sizes.a_heads + member
            if not FLAGS.HAS_GATE:
                for b_start in range(low, high, TILES.BLOCK_B):
                    out, norm = _attend_block(
                        out, norm, a, tokens, b_start, pointers.c + value_block * TILES.BLOCK_V, batch, b_head,
                        columns_left, rate, anchor, pointers, strides, sizes, scales, False, KIND, FLAGS, TILES,
                    )  # fmt: skip
            for b_start in range(diagonal_low, diagonal_high, TILES.BLOCK_B):
                out, norm = _attend_block(
                    out, norm, a, tokens, b_start, pointers.c + value_block * TILES.BLOCK_V, batch, b_head,
                    columns_left, rate, anchor, pointers, strides, sizes, scales, True, KIND, FLAGS, TILES,
                )  # fmt: skip
    out *= scales.result
    if FLAGS.NORMALIZE:
        inv_norm = safe_inverse(norm, valid)
        out *= inv_norm[:, None]
        if value_block == 0:
            flat = (batch.to(tl.int64) * sizes.a_heads + a_head) * sizes.a_length
            tl.store(pointers.out_inv_norm + flat + tokens, inv_norm, mask=tokens < sizes.a_length)  # [BLOCK_A]
    if FLAGS.HAS_MASK and FLAGS.REVERSE:
        out = tl.where(valid[:, None], out, 0.0)
    store_rows(pointers.out + value_block * TILES.BLOCK_V, out, strides.out, batch, a_head, start,
               tokens < sizes.a_length, columns_left, TILES.BLOCK_V,
               TILES.VALUE_DIM % TILES.BLOCK_V == 0)  # [BLOCK_A, BLOCK_V]  # fmt: skip


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
def _attend_block(
    out, norm, a, tokens, b_start, c_pointer, batch, b_head, columns_left, rate, anchor, pointers, strides, sizes,
    scales, DIAGONAL: tl.constexpr, KIND: tl.constexpr, FLAGS: tl.constexpr, TILES: tl.constexpr,
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
    other_sums = 0.0
    if FLAGS.HAS_GATE:
        gate_row = batch * sizes.state_heads + b_head * sizes.state_heads // sizes.b_heads
        other_sums = load_sums(
            pointers.gate_sums, gate_row, others, valid, sizes.b_length, not FLAGS.REVERSE
        )  # [BLOCK_B]  # fmt: skip
    w = causal_decay(
        w, tokens, others, rate, other_sums, anchor, DIAGONAL, FLAGS.REVERSE,
        FLAGS.HAS_DECAY and FLAGS.INTRA == "causal", FLAGS.HAS_GATE,
    )  # [BLOCK_A, BLOCK_B]  # fmt: skip
    if FLAGS.HAS_INV_NORM:
        flat = (batch.to(tl.int64) * sizes.b_heads + b_head) * sizes.b_length
        w *= tl.load(pointers.inv_norm + flat + others, mask=valid, other=0.0)[None, :]  # [1, BLOCK_B]
    if FLAGS.NORMALIZE:
        if FLAGS.HAS_MASK or FLAGS.INTRA == "all":  # an absent key weighs 1, not 0, in a polynomial
            w = tl.where(valid[None, :], w, 0.0)
        norm += tl.sum(w, 1)
    # [BLOCK_A, BLOCK_B] x [BLOCK_B, BLOCK_V]
    return tl.dot(w.to(TILES.DTYPE), c.to(TILES.DTYPE), out, input_precision=TILES.PRECISION), norm
