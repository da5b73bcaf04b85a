"""The kernel of outputs and of the gradients of values: what a block of tokens reads, one by one and from the memory.

out_i = sum_j weight(a_i, b_j) c_j inside the segment + features(a_i)' prefix
"""

import triton
import triton.language as tl

from qkv.attention.triton.kernels.common import ages, both, inverted, job_and_row, load_rows, reach, store_rows, visible


@triton.jit
def read(
    a_pointer, b_pointer, c_pointer, first_pointer, second_pointer, biases_pointer,
    share_pointer, seen_pointer, decay_pointer, prefix_pointer, norms_pointer, out_pointer, inverse_pointer,
    a_b, a_h, a_t, b_b, b_h, b_t, c_b, c_h, c_t, o_b, o_h, o_t,
    a_length, b_length, rows, a_heads, b_heads, memory_heads, stretches, per, slots,
    a_scale, b_scale, score_scale, result_scale,
    LIFT: tl.constexpr, WEIGHT: tl.constexpr, FEATURES: tl.constexpr, EXPANDS: tl.constexpr,
    NORMALIZES: tl.constexpr, SHARED: tl.constexpr, HIDING: tl.constexpr, DECAYS: tl.constexpr,
    REVERSE: tl.constexpr, INSIDE: tl.constexpr, LOCAL: tl.constexpr, BEFORE: tl.constexpr, SEGMENT: tl.constexpr,
    A_BLOCK: tl.constexpr, B_BLOCK: tl.constexpr, KEY_DIM: tl.constexpr, KEY_SIZE: tl.constexpr,
    VALUE_DIM: tl.constexpr, VALUE_SIZE: tl.constexpr, VALUE_BLOCKS: tl.constexpr,
    WIDTH: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr, PURE: tl.constexpr, TYPE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A block of outputs: of the forward, or (reversed) of the gradient of the values.

    INSIDE: "" reads the memory alone, "causal" attends in the segment too, "all" attends to every token.
    """
    job, row = job_and_row(rows)
    part, here = job % VALUE_BLOCKS, job // VALUE_BLOCKS * A_BLOCK
    batch, a_head = row // a_heads, row % a_heads
    tokens, segment = here + tl.arange(0, A_BLOCK), here // SEGMENT
    valid = tokens < a_length
    if HIDING and REVERSE:
        valid &= tl.load(seen_pointer + batch.to(tl.int64) * a_length + tokens, mask=valid, other=0) != 0
    raw = load_rows(a_pointer, batch, a_head, here, a_b, a_h, a_t, valid, KEY_DIM, KEY_SIZE, KEY_DIM == KEY_SIZE)
    a = LIFT(raw, valid, a_scale, False, KEY_DIM, KEY_SIZE).to(TYPE)
    room = VALUE_DIM - part * VALUE_SIZE
    out = tl.zeros([A_BLOCK, VALUE_SIZE], tl.float32)
    norm = tl.zeros([A_BLOCK], tl.float32)
    rate = 0.0
    if DECAYS:
        rate = tl.load(decay_pointer + a_head)
    if LOCAL or BEFORE:
        memory = batch.to(tl.int64) * memory_heads + a_head * memory_heads // a_heads
        local = (memory * slots + segment) * WIDTH
        before = (memory * slots + slots - stretches + tl.minimum(segment // per, stretches - 1)) * WIDTH
        for tile in range(PURE):
            out, norm = _recalled(
                out, norm, a, raw, tile, part, local, before, first_pointer, second_pointer, biases_pointer,
                prefix_pointer, norms_pointer, a_scale, FEATURES, EXPANDS, NORMALIZES, LOCAL, BEFORE, True,
                KEY_DIM, KEY_SIZE, VALUE_SIZE, VALUE_BLOCKS, WIDTH, TILE, TYPE, PRECISION,
            )  # fmt: skip
        for tile in range(PURE, TILES):
            out, norm = _recalled(
                out, norm, a, raw, tile, part, local, before, first_pointer, second_pointer, biases_pointer,
                prefix_pointer, norms_pointer, a_scale, FEATURES, EXPANDS, NORMALIZES, LOCAL, BEFORE, False,
                KEY_DIM, KEY_SIZE, VALUE_SIZE, VALUE_BLOCKS, WIDTH, TILE, TYPE, PRECISION,
            )  # fmt: skip
        if DECAYS:
            fade = tl.exp(-rate * ages(tokens, segment, a_length, SEGMENT, REVERSE))
            out *= fade[:, None]
            norm *= fade
    if INSIDE != "":
        low, high, ordered_low, ordered_high = reach(
            here, segment, b_length, INSIDE, REVERSE, SEGMENT, A_BLOCK, B_BLOCK
        )
        for member in range(tl.maximum(b_heads // a_heads, 1)):
            head = a_head * b_heads // a_heads + member
            for start in range(low, high, B_BLOCK):
                out, norm = _weighed(
                    out, norm, a, tokens, start, b_pointer, c_pointer + part * VALUE_SIZE, share_pointer, seen_pointer,
                    b_b, b_h, b_t, c_b, c_h, c_t, batch, head, b_heads, b_length, b_scale, score_scale, rate, room,
                    LIFT, WEIGHT, NORMALIZES, SHARED, HIDING, DECAYS, REVERSE, INSIDE, False, B_BLOCK,
                    KEY_DIM, KEY_SIZE, VALUE_DIM, VALUE_SIZE, TYPE, PRECISION,
                )  # fmt: skip
            for start in range(ordered_low, ordered_high, B_BLOCK):
                out, norm = _weighed(
                    out, norm, a, tokens, start, b_pointer, c_pointer + part * VALUE_SIZE, share_pointer, seen_pointer,
                    b_b, b_h, b_t, c_b, c_h, c_t, batch, head, b_heads, b_length, b_scale, score_scale, rate, room,
                    LIFT, WEIGHT, NORMALIZES, SHARED, HIDING, DECAYS, REVERSE, INSIDE, True, B_BLOCK,
                    KEY_DIM, KEY_SIZE, VALUE_DIM, VALUE_SIZE, TYPE, PRECISION,
                )  # fmt: skip
    out *= result_scale
    if NORMALIZES:
        inverse = inverted(norm, valid)
        out *= inverse[:, None]
        if part == 0:
            flat = (batch.to(tl.int64) * a_heads + a_head) * a_length
            tl.store(inverse_pointer + flat + tokens, inverse, mask=tokens < a_length)
    if HIDING and REVERSE:
        out = tl.where(valid[:, None], out, 0.0)
    store_rows(out_pointer + part * VALUE_SIZE, out, batch, a_head, here, o_b, o_h, o_t, tokens < a_length, room,
           VALUE_SIZE, VALUE_DIM % VALUE_SIZE == 0)  # fmt: skip


@triton.jit
def _recalled(
    out, norm, a, raw, tile, part, local, before, first_pointer, second_pointer, biases_pointer,
    prefix_pointer, norms_pointer, a_scale, FEATURES: tl.constexpr, EXPANDS: tl.constexpr, NORMALIZES: tl.constexpr,
    LOCAL: tl.constexpr, BEFORE: tl.constexpr, PURE: tl.constexpr,
    KEY_DIM: tl.constexpr, KEY_SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr, VALUE_BLOCKS: tl.constexpr,
    WIDTH: tl.constexpr, TILE: tl.constexpr, TYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`out` and `norm` with what one more tile of features reads from the memory."""
    features = tile * TILE + tl.arange(0, TILE)
    columns = part * VALUE_SIZE + tl.arange(0, VALUE_SIZE)
    p = a
    if EXPANDS:
        p = FEATURES(raw.to(TYPE), features, first_pointer, second_pointer, biases_pointer, a_scale, PURE,
                     KEY_DIM, KEY_SIZE, WIDTH, PRECISION)  # fmt: skip
    if NORMALIZES:
        norm += tl.sum(p * both(norms_pointer, local, before, features, LOCAL, BEFORE)[None, :], 1)
    places = features[:, None] * (VALUE_SIZE * VALUE_BLOCKS) + columns[None, :]
    stride = VALUE_SIZE * VALUE_BLOCKS
    kept = both(prefix_pointer, local * stride, before * stride, places, LOCAL, BEFORE)
    return tl.dot(p.to(TYPE), kept, out, input_precision=PRECISION), norm


@triton.jit
def _weighed(
    out, norm, a, tokens, start, b_pointer, c_pointer, share_pointer, seen_pointer,
    b_b, b_h, b_t, c_b, c_h, c_t, batch, head, b_heads, b_length, b_scale, score_scale, rate, room,
    LIFT: tl.constexpr, WEIGHT: tl.constexpr, NORMALIZES: tl.constexpr, SHARED: tl.constexpr, HIDING: tl.constexpr,
    DECAYS: tl.constexpr, REVERSE: tl.constexpr, INSIDE: tl.constexpr, ORDERED: tl.constexpr, B_BLOCK: tl.constexpr,
    KEY_DIM: tl.constexpr, KEY_SIZE: tl.constexpr, VALUE_DIM: tl.constexpr, VALUE_SIZE: tl.constexpr,
    TYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`out` and `norm` with one more block of tokens, each by its weight."""
    others = start + tl.arange(0, B_BLOCK)
    there = others < b_length
    if HIDING and not REVERSE:
        there &= tl.load(seen_pointer + batch.to(tl.int64) * b_length + others, mask=there, other=0) != 0
    b = load_rows(b_pointer, batch, head, start, b_b, b_h, b_t, there, KEY_DIM, KEY_SIZE, KEY_DIM == KEY_SIZE)
    b = LIFT(b, there, b_scale, HIDING or INSIDE == "all", KEY_DIM, KEY_SIZE).to(TYPE)
    c = load_rows(c_pointer, batch, head, start, c_b, c_h, c_t, there, room, VALUE_SIZE, VALUE_DIM % VALUE_SIZE == 0)
    w = WEIGHT(tl.dot(a, tl.trans(b), input_precision=PRECISION), score_scale)
    w = visible(w, tokens, others, rate, ORDERED, REVERSE, DECAYS and INSIDE == "causal")
    if SHARED:
        flat = (batch.to(tl.int64) * b_heads + head) * b_length
        w *= tl.load(share_pointer + flat + others, mask=there, other=0.0)[None, :]
    if NORMALIZES:
        if HIDING or INSIDE == "all":  # a key that is not there weighs 1, not 0, in a polynomial
            w = tl.where(there[None, :], w, 0.0)
        norm += tl.sum(w, 1)
    return tl.dot(w.to(TYPE), c.to(TYPE), out, input_precision=PRECISION), norm
