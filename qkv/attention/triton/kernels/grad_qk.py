"""The kernel of the gradients of queries and keys.

a_i' = sum_j slope(a_i, b_j) (g_i.c_j + e) b_j inside the segment + features'(a_i) (prefix g_i)
"""

import triton
import triton.language as tl

from qkv.attention.triton.kernels.common import ages, both, job_and_row, load_rows, reach, store_rows, visible


@triton.jit
def pull(
    a_pointer, b_pointer, c_pointer, g_pointer, first_pointer, second_pointer, biases_pointer,
    share_pointer, extra_pointer, seen_pointer, decay_pointer, prefix_pointer, norms_pointer,
    answer_pointer, out_pointer, lost_pointer,
    a_b, a_h, a_t, b_b, b_h, b_t, c_b, c_h, c_t, g_b, g_h, g_t, y_b, y_h, y_t, o_b, o_h, o_t,
    a_length, b_length, rows, a_heads, b_heads, memory_heads, stretches, per, slots,
    a_scale, b_scale, score_scale, result_scale,
    LIFT: tl.constexpr, LOWER: tl.constexpr, WEIGHT: tl.constexpr, SLOPE: tl.constexpr,
    FEATURES: tl.constexpr, PULL: tl.constexpr,
    NORMALIZES: tl.constexpr, HIDING: tl.constexpr, DECAYS: tl.constexpr, LOSES: tl.constexpr,
    REVERSE: tl.constexpr, INSIDE: tl.constexpr, LOCAL: tl.constexpr, BEFORE: tl.constexpr, SEGMENT: tl.constexpr,
    A_BLOCK: tl.constexpr, B_BLOCK: tl.constexpr, KEY_DIM: tl.constexpr, KEY_SIZE: tl.constexpr,
    VALUE_DIM: tl.constexpr, VALUE_SIZE: tl.constexpr, VALUE_BLOCKS: tl.constexpr,
    WIDTH: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr, PURE: tl.constexpr, TYPE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A block of gradients: of the queries, or (reversed) of the keys.

    `share` and `extra` belong to the queries, which are the a of the forward order and the b of the reverse. `extra`,
    the gradient of a normalizer, is -(g.answer) / norm: it is made here with the queries, and kept for the keys.
    """
    job, row = job_and_row(rows)
    here = job * A_BLOCK
    batch, a_head = row // a_heads, row % a_heads
    tokens, segment = here + tl.arange(0, A_BLOCK), here // SEGMENT
    valid = tokens < a_length
    if HIDING and REVERSE:
        valid &= tl.load(seen_pointer + batch.to(tl.int64) * a_length + tokens, mask=valid, other=0) != 0
    raw = load_rows(a_pointer, batch, a_head, here, a_b, a_h, a_t, valid, KEY_DIM, KEY_SIZE, KEY_DIM == KEY_SIZE)
    a = LIFT(raw, valid, a_scale, False, KEY_DIM, KEY_SIZE).to(TYPE)
    g = load_rows(g_pointer, batch, a_head, here, g_b, g_h, g_t, valid, VALUE_DIM, VALUE_SIZE, VALUE_DIM >= VALUE_SIZE)
    share = tl.full([A_BLOCK], 1.0, tl.float32)
    extra = tl.full([A_BLOCK], 1.0, tl.float32)
    if NORMALIZES and not REVERSE:
        flat = (batch.to(tl.int64) * a_heads + a_head) * a_length
        share = tl.load(share_pointer + flat + tokens, mask=valid, other=0.0)
        extra = -share * _met(g, g_pointer, answer_pointer, batch, a_head, here, g_b, g_h, g_t, y_b, y_h, y_t, valid,
                              VALUE_DIM, VALUE_SIZE, VALUE_BLOCKS)  # fmt: skip
        tl.store(extra_pointer + flat + tokens, extra, mask=valid)
    out = tl.zeros([A_BLOCK, KEY_SIZE], tl.float32)
    lost = tl.zeros([A_BLOCK], tl.float32)
    rate = 0.0
    if DECAYS:
        rate = tl.load(decay_pointer + a_head)
    if LOCAL or BEFORE:
        memory = batch.to(tl.int64) * memory_heads + a_head * memory_heads // a_heads
        local = (memory * slots + segment) * WIDTH
        before = (memory * slots + slots - stretches + tl.minimum(segment // per, stretches - 1)) * WIDTH
        age = ages(tokens, segment, a_length, SEGMENT, REVERSE).to(tl.float32)
        norms = tl.zeros([TILE], tl.float32)
        if NORMALIZES:
            norms = _norms_of(norms_pointer, local, before, tl.arange(0, TILE), WIDTH, LOCAL, BEFORE)
        for tile in range(PURE):
            out, lost, norms = _reached(
                out, lost, norms, raw, g, share, extra, age, rate, tile, local, before, valid, here, batch, a_head,
                g_pointer, first_pointer, second_pointer, biases_pointer, prefix_pointer, norms_pointer,
                g_b, g_h, g_t, a_scale, FEATURES, PULL, NORMALIZES, DECAYS, LOSES, LOCAL, BEFORE, True,
                KEY_DIM, KEY_SIZE, VALUE_DIM, VALUE_SIZE, VALUE_BLOCKS, WIDTH, TILE, TYPE, PRECISION,
            )  # fmt: skip
        for tile in range(PURE, TILES):
            out, lost, norms = _reached(
                out, lost, norms, raw, g, share, extra, age, rate, tile, local, before, valid, here, batch, a_head,
                g_pointer, first_pointer, second_pointer, biases_pointer, prefix_pointer, norms_pointer,
                g_b, g_h, g_t, a_scale, FEATURES, PULL, NORMALIZES, DECAYS, LOSES, LOCAL, BEFORE, False,
                KEY_DIM, KEY_SIZE, VALUE_DIM, VALUE_SIZE, VALUE_BLOCKS, WIDTH, TILE, TYPE, PRECISION,
            )  # fmt: skip
    if INSIDE != "":
        low, high, ordered_low, ordered_high = reach(
            here, segment, b_length, INSIDE, REVERSE, SEGMENT, A_BLOCK, B_BLOCK
        )
        for member in range(tl.maximum(b_heads // a_heads, 1)):
            head = a_head * b_heads // a_heads + member
            for start in range(low, high, B_BLOCK):
                out, lost = _followed(
                    out, lost, a, g, share, extra, tokens, valid, here, start,
                    b_pointer, c_pointer, g_pointer, share_pointer, extra_pointer, seen_pointer,
                    b_b, b_h, b_t, c_b, c_h, c_t, g_b, g_h, g_t, batch, a_head, head, b_heads, b_length,
                    b_scale, score_scale, rate, LIFT, WEIGHT, SLOPE, NORMALIZES, HIDING, DECAYS, LOSES, REVERSE, INSIDE,
                    False, B_BLOCK, KEY_DIM, KEY_SIZE, VALUE_DIM, VALUE_SIZE, VALUE_BLOCKS, TYPE, PRECISION,
                )  # fmt: skip
            for start in range(ordered_low, ordered_high, B_BLOCK):
                out, lost = _followed(
                    out, lost, a, g, share, extra, tokens, valid, here, start,
                    b_pointer, c_pointer, g_pointer, share_pointer, extra_pointer, seen_pointer,
                    b_b, b_h, b_t, c_b, c_h, c_t, g_b, g_h, g_t, batch, a_head, head, b_heads, b_length,
                    b_scale, score_scale, rate, LIFT, WEIGHT, SLOPE, NORMALIZES, HIDING, DECAYS, LOSES, REVERSE, INSIDE,
                    True, B_BLOCK, KEY_DIM, KEY_SIZE, VALUE_DIM, VALUE_SIZE, VALUE_BLOCKS, TYPE, PRECISION,
                )  # fmt: skip
    out = tl.where(valid[:, None], LOWER(raw, out * result_scale, a_scale), 0.0)
    store_rows(out_pointer, out, batch, a_head, here, o_b, o_h, o_t, tokens < a_length, KEY_DIM, KEY_SIZE,
           KEY_DIM == KEY_SIZE)  # fmt: skip
    if LOSES:
        flat = (batch.to(tl.int64) * a_heads + a_head) * a_length
        tl.store(lost_pointer + flat + tokens, tl.where(valid, lost * result_scale, 0.0), mask=tokens < a_length)


@triton.jit
def _met(
    g, g_pointer, answer_pointer, batch, head, here, g_b, g_h, g_t, y_b, y_h, y_t, valid,
    VALUE_DIM: tl.constexpr, VALUE_SIZE: tl.constexpr, VALUE_BLOCKS: tl.constexpr,
):  # fmt: skip
    """g.answer of each token."""
    total = tl.zeros([valid.shape[0]], tl.float32)
    for part in tl.static_range(VALUE_BLOCKS):
        room = VALUE_DIM - part * VALUE_SIZE
        more = g
        if part > 0:
            more = load_rows(g_pointer + part * VALUE_SIZE, batch, head, here, g_b, g_h, g_t, valid, room, VALUE_SIZE,
                         False)  # fmt: skip
        answer = load_rows(answer_pointer + part * VALUE_SIZE, batch, head, here, y_b, y_h, y_t, valid, room,
                       VALUE_SIZE, VALUE_DIM % VALUE_SIZE == 0)  # fmt: skip
        total += tl.sum(more.to(tl.float32) * answer.to(tl.float32), 1)
    return total


@triton.jit
def _norms_of(pointer, local, before, features, WIDTH: tl.constexpr, LOCAL: tl.constexpr, BEFORE: tl.constexpr):
    """Sums of these features alone; asked for a tile ahead, so that no product waits for them."""
    there = features < WIDTH
    kept = tl.zeros([features.shape[0]], tl.float32)
    if LOCAL:
        kept += tl.load(pointer + local + features, mask=there, other=0.0)
    if BEFORE:
        kept += tl.load(pointer + before + features, mask=there, other=0.0)
    return kept


@triton.jit
def _reached(
    out, lost, norms, raw, g, share, extra, age, rate, tile, local, before, valid, here, batch, a_head,
    g_pointer, first_pointer, second_pointer, biases_pointer, prefix_pointer, norms_pointer,
    g_b, g_h, g_t, a_scale, FEATURES: tl.constexpr, PULL: tl.constexpr, NORMALIZES: tl.constexpr, DECAYS: tl.constexpr,
    LOSES: tl.constexpr, LOCAL: tl.constexpr, BEFORE: tl.constexpr, PURE: tl.constexpr,
    KEY_DIM: tl.constexpr, KEY_SIZE: tl.constexpr, VALUE_DIM: tl.constexpr,
    VALUE_SIZE: tl.constexpr, VALUE_BLOCKS: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr, TYPE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """`out` and `lost` with what the memory wants of one more tile of features, and the `norms` of the next."""
    features = tile * TILE + tl.arange(0, TILE)
    coming = norms
    if NORMALIZES:
        coming = _norms_of(norms_pointer, local, before, features + TILE, WIDTH, LOCAL, BEFORE)
    wanted = tl.zeros([valid.shape[0], TILE], tl.float32)
    for part in tl.static_range(VALUE_BLOCKS):
        more = g
        if part > 0:
            more = load_rows(g_pointer + part * VALUE_SIZE, batch, a_head, here, g_b, g_h, g_t, valid,
                         VALUE_DIM - part * VALUE_SIZE, VALUE_SIZE, False)  # fmt: skip
        columns = part * VALUE_SIZE + tl.arange(0, VALUE_SIZE)
        stride = VALUE_SIZE * VALUE_BLOCKS
        places = features[None, :] * stride + columns[:, None]
        kept = both(prefix_pointer, local * stride, before * stride, places, LOCAL, BEFORE)
        wanted = tl.dot(more.to(TYPE), kept, wanted, input_precision=PRECISION)
    if NORMALIZES:
        wanted = wanted * share[:, None] + extra[:, None] * norms[None, :]
    if DECAYS:
        wanted *= tl.exp(-rate * age)[:, None]
    if LOSES:
        p = FEATURES(raw.to(TYPE), features, first_pointer, second_pointer, biases_pointer, a_scale, PURE,
                     KEY_DIM, KEY_SIZE, WIDTH, PRECISION)  # fmt: skip
        lost += age * tl.sum(wanted * p, 1)
    out = PULL(out, raw.to(TYPE), wanted, features, first_pointer, second_pointer, biases_pointer, PURE,
               KEY_SIZE, WIDTH, TYPE, PRECISION)  # fmt: skip
    return out, lost, coming


@triton.jit
def _followed(
    out, lost, a, g, share, extra, tokens, valid, here, start,
    b_pointer, c_pointer, g_pointer, share_pointer, extra_pointer, seen_pointer,
    b_b, b_h, b_t, c_b, c_h, c_t, g_b, g_h, g_t, batch, a_head, head, b_heads, b_length,
    b_scale, score_scale, rate, LIFT: tl.constexpr, WEIGHT: tl.constexpr, SLOPE: tl.constexpr,
    NORMALIZES: tl.constexpr, HIDING: tl.constexpr, DECAYS: tl.constexpr, LOSES: tl.constexpr,
    REVERSE: tl.constexpr, INSIDE: tl.constexpr, ORDERED: tl.constexpr, B_BLOCK: tl.constexpr,
    KEY_DIM: tl.constexpr, KEY_SIZE: tl.constexpr, VALUE_DIM: tl.constexpr, VALUE_SIZE: tl.constexpr,
    VALUE_BLOCKS: tl.constexpr, TYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`out` and `lost` with what one more block of tokens wants of this one."""
    others = start + tl.arange(0, B_BLOCK)
    there = others < b_length
    if HIDING and not REVERSE:
        there &= tl.load(seen_pointer + batch.to(tl.int64) * b_length + others, mask=there, other=0) != 0
    b = load_rows(b_pointer, batch, head, start, b_b, b_h, b_t, there, KEY_DIM, KEY_SIZE, KEY_DIM == KEY_SIZE)
    b = LIFT(b, there, b_scale, HIDING or INSIDE == "all", KEY_DIM, KEY_SIZE).to(TYPE)
    wanted = tl.zeros([tokens.shape[0], B_BLOCK], tl.float32)
    for part in tl.static_range(VALUE_BLOCKS):
        room = VALUE_DIM - part * VALUE_SIZE
        more = g
        if part > 0:
            more = load_rows(g_pointer + part * VALUE_SIZE, batch, a_head, here, g_b, g_h, g_t, valid, room, VALUE_SIZE,
                         False)  # fmt: skip
        c = load_rows(c_pointer + part * VALUE_SIZE, batch, head, start, c_b, c_h, c_t, there, room, VALUE_SIZE,
                  VALUE_DIM % VALUE_SIZE == 0)  # fmt: skip
        wanted = tl.dot(more.to(TYPE), tl.trans(c.to(TYPE)), wanted, input_precision=PRECISION)
    if NORMALIZES:
        if REVERSE:
            flat = (batch.to(tl.int64) * b_heads + head) * b_length
            wanted *= tl.load(share_pointer + flat + others, mask=there, other=0.0)[None, :]
            wanted += tl.load(extra_pointer + flat + others, mask=there, other=0.0)[None, :]
        else:
            wanted = wanted * share[:, None] + extra[:, None]
    product = tl.dot(a, tl.trans(b), input_precision=PRECISION)
    wanted = visible(wanted, tokens, others, rate, ORDERED, REVERSE, DECAYS and INSIDE == "causal")
    if LOSES and not REVERSE:
        distance = (tokens[:, None] - others[None, :]).to(tl.float32)
        lost += tl.sum(tl.where(there[None, :], wanted * WEIGHT(product, score_scale) * distance, 0.0), 1)
    return tl.dot((wanted * SLOPE(product, score_scale)).to(TYPE), b, out, input_precision=PRECISION), lost
