"""Kernel of the gradients of queries and keys.

da_i = sum_j slope(a_i, b_j) (g_i.c_j + d_norm) b_j in the segment + features'(a_i) (prefix g_i)
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
    store_rows,
    token_ranges,
)
from qkv.attention.triton.kernels.gate import (
    FROM_START,
    SUMS,
    TO_END,
    WEAK,
    causal,
    end_sum,
    fade_pairs,
    gate_plane,
    load_columns,
    row_fade,
    state_fade,
)


class GradPointers(NamedTuple):
    """Tensors of `grad_qk`."""

    a: Pointer
    b: Pointer
    c: Pointer
    g: Pointer
    """Gradients of the outputs of a or, reversed, its values."""
    first_picks: Pointer
    second_picks: Pointer
    biases: Pointer
    inv_norm: Pointer
    d_norm: Pointer
    """Gradients of the normalizers: written with the queries, read with the keys."""
    mask: Pointer
    decay: Pointer
    gate: Pointer
    segment_fades: Pointer
    prefix_kv: Pointer
    prefix_k: Pointer
    forward_out: Pointer
    """Outputs of the forward."""
    out: Pointer
    d_decay: Pointer
    """Per token: the gradient of the decay or, with a gate, the sum of weights times their gradients."""


class GradStrides(NamedTuple):
    """Strides of `grad_qk`."""

    a: Strides
    b: Strides
    c: Strides
    g: Strides
    forward_out: Strides
    out: Strides


@triton.jit
def grad_qk(
    pointers, strides, sizes, scales, KIND: tl.constexpr, FLAGS: tl.constexpr, TILES: tl.constexpr
):  # fmt: skip
    """Compute a block of gradients of the queries or, reversed, of the keys.

    `inv_norm` and `d_norm` belong to the queries, which are side a in forward order and side b in reverse. The
    gradient of a normalizer, -(g.out) / norm, is computed here with the queries, and stored for the keys.
    """
    work_item, row = program_and_row(sizes.rows)
    start = work_item * TILES.BLOCK_A
    batch, a_head = row // sizes.a_heads, row % sizes.a_heads
    tokens, segment = start + tl.arange(0, TILES.BLOCK_A), start // TILES.SEGMENT  # [BLOCK_A], scalar
    valid = tokens < sizes.a_length
    if FLAGS.HAS_MASK and FLAGS.REVERSE:
        mask_row = pointers.mask + batch.to(tl.int64) * sizes.a_length + tokens
        valid &= tl.load(mask_row, mask=valid, other=0) != 0  # [BLOCK_A]
    raw = load_rows(pointers.a, strides.a, batch, a_head, start, valid, TILES.KEY_DIM, TILES.BLOCK_K,
                    TILES.KEY_DIM == TILES.BLOCK_K)  # [BLOCK_A, BLOCK_K]  # fmt: skip
    a = KIND.map_input(raw, valid, scales.a, False, TILES).to(TILES.DTYPE)  # [BLOCK_A, BLOCK_K]
    g = load_rows(pointers.g, strides.g, batch, a_head, start, valid, TILES.VALUE_DIM, TILES.BLOCK_V,
                  TILES.VALUE_DIM >= TILES.BLOCK_V)  # [BLOCK_A, BLOCK_V]  # fmt: skip
    inv_norm = tl.full([TILES.BLOCK_A], 1.0, tl.float32)
    d_norm = tl.full([TILES.BLOCK_A], 1.0, tl.float32)
    if FLAGS.NORMALIZE and not FLAGS.REVERSE:
        flat = (batch.to(tl.int64) * sizes.a_heads + a_head) * sizes.a_length
        inv_norm = tl.load(pointers.inv_norm + flat + tokens, mask=valid, other=0.0)  # [BLOCK_A]
        d_norm = -inv_norm * _dot_with_output(g, batch, a_head, start, valid, pointers, strides, TILES)
        tl.store(pointers.d_norm + flat + tokens, d_norm, mask=valid)  # [BLOCK_A]
    out = tl.zeros([TILES.BLOCK_A, TILES.BLOCK_K], tl.float32)
    d_decay = tl.zeros([TILES.BLOCK_A], tl.float32)
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
        age = border_distance(tokens, segment, sizes.a_length, TILES.SEGMENT, FLAGS.REVERSE).to(tl.float32)
        k_sum = tl.zeros([TILES.BLOCK_F], tl.float32)
        if FLAGS.NORMALIZE:
            k_sum = _load_k_sum(
                pointers, local, before, before_fade, tl.arange(0, TILES.BLOCK_F), FLAGS, TILES
            )  # [BLOCK_F]  # fmt: skip
        for tile in range(TILES.PURE_TILES):
            out, d_decay, k_sum = _add_state_grad(
                out, d_decay, k_sum, raw, g, inv_norm, d_norm, age, rate, tile, local, before, before_fade, valid,
                start, batch, a_head, pointers, strides, scales, True, KIND, FLAGS, TILES,
            )  # fmt: skip
        if FLAGS.SUM_PAIRS and TILES.PURE_TILES > 0:
            # these features are of degree 2: the sum of each times its gradient is half of x times the gradient of x
            d_decay += 0.5 * tl.sum(raw.to(tl.float32) * out, 1)
        for tile in range(TILES.PURE_TILES, TILES.FEATURE_TILES):
            out, d_decay, k_sum = _add_state_grad(
                out, d_decay, k_sum, raw, g, inv_norm, d_norm, age, rate, tile, local, before, before_fade, valid,
                start, batch, a_head, pointers, strides, scales, False, KIND, FLAGS, TILES,
            )  # fmt: skip
    if FLAGS.INTRA != "none":
        low, high, diagonal_low, diagonal_high = token_ranges(start, segment, sizes.b_length, FLAGS, TILES)
        if FLAGS.HAS_GATE:
            if weak:
                out, d_decay = _add_segment_grad(
                    out, d_decay, a, g, inv_norm, d_norm, tokens, valid, start, segment, batch, a_head, rate, columns,
                    pointers, strides, sizes, scales, "weak", KIND, FLAGS, TILES,
                )  # fmt: skip
            else:
                fade = state_fade(rate, end, FLAGS.REVERSE)  # [BLOCK_A]
                out *= fade[:, None]
                d_decay *= fade
                out, d_decay = _add_segment_grad(
                    out, d_decay, a, g, inv_norm, d_norm, tokens, valid, start, segment, batch, a_head, rate, columns,
                    pointers, strides, sizes, scales, "strong", KIND, FLAGS, TILES,
                )  # fmt: skip
        else:  # the loops of `_add_segment_grad`, written out: the machine code of a call follows even their place
            for member in range(tl.maximum(sizes.b_heads // sizes.a_heads, 1)):
                b_head = a_head * sizes.b_heads // sizes.a_heads + member
                for b_start in range(low, high, TILES.BLOCK_B):
                    out, d_decay = _add_block_grad(
                        out, d_decay, a, g, inv_norm, d_norm, tokens, valid, start, b_start, batch, a_head, b_head,
                        rate, columns, pointers, strides, sizes, scales, False, "none", KIND, FLAGS, TILES,
                    )  # fmt: skip
                for b_start in range(diagonal_low, diagonal_high, TILES.BLOCK_B):
                    out, d_decay = _add_block_grad(
                        out, d_decay, a, g, inv_norm, d_norm, tokens, valid, start, b_start, batch, a_head, b_head,
                        rate, columns, pointers, strides, sizes, scales, True, "none", KIND, FLAGS, TILES,
                    )  # fmt: skip
    result = scales.result
    if FLAGS.HAS_GATE:
        if not FLAGS.SUM_PAIRS:
            d_decay = tl.sum(a.to(tl.float32) * out, 1)
        row_factor = row_fade(rate, end, weak, FLAGS.REVERSE)  # [BLOCK_A]
        d_decay *= row_factor
        result = (row_factor * scales.result)[:, None]
    out = tl.where(valid[:, None], KIND.map_grad(raw, out * result, scales.a), 0.0)
    store_rows(pointers.out, out, strides.out, batch, a_head, start, tokens < sizes.a_length, TILES.KEY_DIM,
               TILES.BLOCK_K, TILES.KEY_DIM == TILES.BLOCK_K)  # [BLOCK_A, BLOCK_K]  # fmt: skip
    if FLAGS.HAS_DECAY or FLAGS.HAS_GATE:
        flat = (batch.to(tl.int64) * sizes.a_heads + a_head) * sizes.a_length
        tl.store(
            pointers.d_decay + flat + tokens,
            tl.where(valid, d_decay * scales.result, 0.0),
            mask=tokens < sizes.a_length,
        )  # [BLOCK_A]


@triton.jit
def _dot_with_output(g, batch, head, start, valid, pointers, strides, TILES: tl.constexpr):
    """Return g.out of each token."""
    total = tl.zeros([valid.shape[0]], tl.float32)
    for value_block in tl.static_range(TILES.VALUE_BLOCKS):
        columns_left = TILES.VALUE_DIM - value_block * TILES.BLOCK_V
        g_block = g
        if value_block > 0:
            g_block = load_rows(pointers.g + value_block * TILES.BLOCK_V, strides.g, batch, head, start, valid,
                                columns_left, TILES.BLOCK_V, False)  # [BLOCK_A, BLOCK_V]  # fmt: skip
        out = load_rows(pointers.forward_out + value_block * TILES.BLOCK_V, strides.forward_out, batch, head, start,
                        valid, columns_left, TILES.BLOCK_V,
                        TILES.VALUE_DIM % TILES.BLOCK_V == 0)  # [BLOCK_A, BLOCK_V]  # fmt: skip
        total += tl.sum(g_block.to(tl.float32) * out.to(tl.float32), 1)
    return total


@triton.jit
def _load_k_sum(pointers, local, before, before_fade, features, FLAGS: tl.constexpr, TILES: tl.constexpr):
    """Load sums of these features alone; called one tile ahead, so that no dot product waits for them."""
    inside = features < TILES.PADDED_FEATURES
    k_sum = tl.zeros([features.shape[0]], tl.float32)
    if FLAGS.LOCAL_PREFIX:
        k_sum += tl.load(pointers.prefix_k + local + features, mask=inside, other=0.0)  # [BLOCK_F]
    if FLAGS.SPLIT_PREFIX and FLAGS.HAS_GATE:
        k_sum += before_fade * tl.load(pointers.prefix_k + before + features, mask=inside, other=0.0)  # [BLOCK_F]
    elif FLAGS.SPLIT_PREFIX:
        k_sum += tl.load(pointers.prefix_k + before + features, mask=inside, other=0.0)  # [BLOCK_F]
    return k_sum


@triton.jit
def _add_state_grad(
    out, d_decay, k_sum, raw, g, inv_norm, d_norm, age, rate, tile, local, before, before_fade, valid, start, batch,
    a_head, pointers, strides, scales, PURE: tl.constexpr, KIND: tl.constexpr, FLAGS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Add to `out` and `d_decay` the gradient through one tile of features of the state; load the next `k_sum`.

    With a gate, the caller applies its factor, and takes `d_decay` of pure tiles from `out`.
    """
    features = tile * TILES.BLOCK_F + tl.arange(0, TILES.BLOCK_F)  # [BLOCK_F]
    next_k_sum = k_sum
    if FLAGS.NORMALIZE:
        next_k_sum = _load_k_sum(
            pointers, local, before, before_fade, features + TILES.BLOCK_F, FLAGS, TILES
        )  # [BLOCK_F]  # fmt: skip
    d_phi = tl.zeros([valid.shape[0], TILES.BLOCK_F], tl.float32)
    for value_block in tl.static_range(TILES.VALUE_BLOCKS):
        g_block = g
        if value_block > 0:
            g_block = load_rows(pointers.g + value_block * TILES.BLOCK_V, strides.g, batch, a_head, start, valid,
                                TILES.VALUE_DIM - value_block * TILES.BLOCK_V, TILES.BLOCK_V,
                                False)  # [BLOCK_A, BLOCK_V]  # fmt: skip
        columns = value_block * TILES.BLOCK_V + tl.arange(0, TILES.BLOCK_V)  # [BLOCK_V]
        stride = TILES.BLOCK_V * TILES.VALUE_BLOCKS
        offsets = features[None, :] * stride + columns[:, None]
        kv_sum = load_prefix(
            pointers.prefix_kv, local * stride, before * stride, offsets, before_fade, FLAGS.LOCAL_PREFIX,
            FLAGS.SPLIT_PREFIX, FLAGS.HAS_GATE,
        )  # [BLOCK_V, BLOCK_F]  # fmt: skip
        # [BLOCK_A, BLOCK_V] x [BLOCK_V, BLOCK_F]
        d_phi = tl.dot(g_block.to(TILES.DTYPE), kv_sum, d_phi, input_precision=TILES.PRECISION)
    if FLAGS.NORMALIZE:
        d_phi = d_phi * inv_norm[:, None] + d_norm[:, None] * k_sum[None, :]
    if FLAGS.HAS_DECAY:
        d_phi *= tl.exp(-rate * age)[:, None]
        phi = KIND.features(raw.to(TILES.DTYPE), features, pointers, scales.a, PURE, TILES)  # [BLOCK_A, BLOCK_F]
        d_decay += age * tl.sum(d_phi * phi, 1)
    if FLAGS.SUM_PAIRS and not PURE:
        phi = KIND.features(raw.to(TILES.DTYPE), features, pointers, scales.a, PURE, TILES)  # [BLOCK_A, BLOCK_F]
        d_decay += tl.sum(d_phi * phi, 1)
    out = KIND.grad_features(out, raw.to(TILES.DTYPE), d_phi, features, pointers, PURE, TILES)  # [BLOCK_A, BLOCK_K]
    return out, d_decay, next_k_sum


@triton.jit
def _add_segment_grad(
    out, d_decay, a, g, inv_norm, d_norm, tokens, valid, start, segment, batch, a_head, rate, columns,
    pointers, strides, sizes, scales,
    GATE: tl.constexpr, KIND: tl.constexpr, FLAGS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Add to `out` and `d_decay` the gradient through the tokens of side b that are attended to one by one."""
    sums = tl.zeros([TILES.BLOCK_A, 8], tl.float32)
    low, high, diagonal_low, diagonal_high = token_ranges(start, segment, sizes.b_length, FLAGS, TILES)
    for member in range(tl.maximum(sizes.b_heads // sizes.a_heads, 1)):
        b_head = a_head * sizes.b_heads // sizes.a_heads + member
        for b_start in range(low, high, TILES.BLOCK_B):
            out, sums = _add_block_grad(
                out, sums, a, g, inv_norm, d_norm, tokens, valid, start, b_start, batch, a_head, b_head, rate,
                columns, pointers, strides, sizes, scales, False, GATE, KIND, FLAGS, TILES,
            )  # fmt: skip
        for b_start in range(diagonal_low, diagonal_high, TILES.BLOCK_B):
            out, sums = _add_block_grad(
                out, sums, a, g, inv_norm, d_norm, tokens, valid, start, b_start, batch, a_head, b_head, rate,
                columns, pointers, strides, sizes, scales, True, GATE, KIND, FLAGS, TILES,
            )  # fmt: skip
    return out, d_decay + tl.sum(sums, 1)


@triton.jit
def _add_block_grad(
    out, d_decay, a, g, inv_norm, d_norm, tokens, valid, start, b_start, batch, a_head, b_head, rate,
    columns, pointers, strides, sizes, scales,
    DIAGONAL: tl.constexpr, GATE: tl.constexpr, KIND: tl.constexpr, FLAGS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Add to `out` and `d_decay` the gradient through the weights of one block of tokens of side b."""
    others = b_start + tl.arange(0, TILES.BLOCK_B)  # [BLOCK_B]
    b_valid = others < sizes.b_length
    if FLAGS.HAS_MASK and not FLAGS.REVERSE:
        mask_row = pointers.mask + batch.to(tl.int64) * sizes.b_length + others
        b_valid &= tl.load(mask_row, mask=b_valid, other=0) != 0  # [BLOCK_B]
    b = load_rows(pointers.b, strides.b, batch, b_head, b_start, b_valid, TILES.KEY_DIM, TILES.BLOCK_K,
                  TILES.KEY_DIM == TILES.BLOCK_K)  # [BLOCK_B, BLOCK_K]  # fmt: skip
    b = KIND.map_input(b, b_valid, scales.b, FLAGS.HAS_MASK or FLAGS.INTRA == "all", TILES).to(TILES.DTYPE)
    d_weight = tl.zeros([tokens.shape[0], TILES.BLOCK_B], tl.float32)
    for value_block in tl.static_range(TILES.VALUE_BLOCKS):
        columns_left = TILES.VALUE_DIM - value_block * TILES.BLOCK_V
        g_block = g
        if value_block > 0:
            g_block = load_rows(pointers.g + value_block * TILES.BLOCK_V, strides.g, batch, a_head, start, valid,
                                columns_left, TILES.BLOCK_V, False)  # [BLOCK_A, BLOCK_V]  # fmt: skip
        c = load_rows(pointers.c + value_block * TILES.BLOCK_V, strides.c, batch, b_head, b_start, b_valid,
                      columns_left, TILES.BLOCK_V,
                      TILES.VALUE_DIM % TILES.BLOCK_V == 0)  # [BLOCK_B, BLOCK_V]  # fmt: skip
        # [BLOCK_A, BLOCK_V] x [BLOCK_V, BLOCK_B]
        d_weight = tl.dot(
            g_block.to(TILES.DTYPE), tl.trans(c.to(TILES.DTYPE)), d_weight, input_precision=TILES.PRECISION
        )
    if FLAGS.HAS_GATE:
        column = load_columns(columns, others, b_valid, FLAGS.HAS_MASK and not FLAGS.REVERSE, GATE)  # [BLOCK_B]
    if FLAGS.NORMALIZE:
        if FLAGS.REVERSE and GATE == "weak":
            flat = (batch.to(tl.int64) * sizes.b_heads + b_head) * sizes.b_length
            factor = column.to(tl.float32)  # [BLOCK_B]
            d_weight *= (factor * tl.load(pointers.inv_norm + flat + others, mask=b_valid, other=0.0))[None, :]
            d_weight += (factor * tl.load(pointers.d_norm + flat + others, mask=b_valid, other=0.0))[None, :]
        elif FLAGS.REVERSE:
            flat = (batch.to(tl.int64) * sizes.b_heads + b_head) * sizes.b_length
            d_weight *= tl.load(pointers.inv_norm + flat + others, mask=b_valid, other=0.0)[None, :]  # [1, BLOCK_B]
            d_weight += tl.load(pointers.d_norm + flat + others, mask=b_valid, other=0.0)[None, :]  # [1, BLOCK_B]
        else:
            d_weight = d_weight * inv_norm[:, None] + d_norm[:, None]
    # [BLOCK_A, BLOCK_K] x [BLOCK_K, BLOCK_B]
    product = tl.dot(a, tl.trans(b), input_precision=TILES.PRECISION)
    if GATE == "none":
        d_weight = causal_decay(
            d_weight, tokens, others, rate, DIAGONAL, FLAGS.REVERSE, FLAGS.HAS_DECAY and FLAGS.INTRA == "causal"
        )  # [BLOCK_A, BLOCK_B]  # fmt: skip
    elif DIAGONAL:
        d_weight = causal(d_weight, tokens, b_start, FLAGS.REVERSE)  # [BLOCK_A, BLOCK_B]
    if GATE == "strong":
        d_weight = fade_pairs(d_weight, rate, column, FLAGS.REVERSE)
    elif GATE == "weak" and not (FLAGS.NORMALIZE and FLAGS.REVERSE):
        d_weight *= column.to(tl.float32)[None, :]
    if FLAGS.HAS_DECAY and not FLAGS.REVERSE:
        distance = (tokens[:, None] - others[None, :]).to(tl.float32)
        d_decay += tl.sum(tl.where(b_valid[None, :], d_weight * KIND.weight(product, scales.score) * distance, 0.0), 1)
    if FLAGS.SUM_PAIRS:
        others_only = d_weight  # [BLOCK_A, BLOCK_B]
        if DIAGONAL and tl.float32 == TILES.DTYPE:  # in bfloat16 both sides contain them, and they cancel in float32
            others_only = tl.where(tokens[:, None] != others[None, :], d_weight, 0.0)
        d_decay += KIND.pair_sums(others_only, product, scales.score)  # [BLOCK_A, 8]
    d_product = (d_weight * KIND.slope(product, scales.score)).to(TILES.DTYPE)
    # [BLOCK_A, BLOCK_B] x [BLOCK_B, BLOCK_K]
    return tl.dot(d_product, b, out, input_precision=TILES.PRECISION), d_decay
