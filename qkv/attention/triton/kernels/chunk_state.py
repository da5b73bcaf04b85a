"""The kernels of all feature-map kinds: four passes, forward and backward alike; here those that make the memory.

    states   the sum over each segment's tokens of features(x) c', and of features(x) alone
    scan     the running sum of those, from the first segment on or from the last one back
    read     (`read_triton`) out_i = sum_j weight(a_i, b_j) c_j inside the segment + features(a_i)' prefix
    pull     (`pull_triton`) the gradient of a_i: sum_j slope(a_i, b_j) (g_i.c_j + e) b_j + features'(a_i) (prefix g_i)

Segments are independent between the scans, so a chip is filled by few heads too. The backward needs no
kernels of its own, since the gradient of a value is a reading with the roles exchanged and the order
reversed: dv = read(k; q, dout), dq = pull(q; k, v), dk = pull(k; q, dout). Nothing is added atomically: the
same input gives the same bits. What a kind is, is a handful of small functions that are passed in (`taylor_triton`,
`linear_triton`). Grouped heads share keys, values and memory; with decay every head has its own of each.

A token's `share` multiplies its weight (1 / normalizer in the backward); `extra` is what it adds to the
normalizer's column (1 in the forward, if it is seen). With decay, what a segment writes has aged since the token
(`falling`), and what it reads since the segment's border (`rising`); reversed, the two are exchanged.
"""

import triton
import triton.language as tl

from qkv.attention.triton.kernels.common import ages, job_and_row, load_rows


@triton.jit
def states(
    x_pointer, c_pointer, first_pointer, second_pointer, biases_pointer, weights_pointer,
    share_pointer, extra_pointer, seen_pointer, decay_pointer, sums_pointer, norms_pointer,
    prefix_pointer, prefix_norms_pointer, x_b, x_h, x_t, c_b, c_h, c_t,
    length, per, stretches, slots, rows, memory_heads, x_heads, scale,
    CHOSEN: tl.constexpr, TURNED: tl.constexpr, NORMALIZES: tl.constexpr, SHARED: tl.constexpr, HIDING: tl.constexpr,
    DECAYS: tl.constexpr, REVERSE: tl.constexpr, LOCAL: tl.constexpr, WEIGHS: tl.constexpr,
    SEGMENT: tl.constexpr, BLOCK: tl.constexpr,
    KEY_DIM: tl.constexpr, KEY_SIZE: tl.constexpr, VALUE_DIM: tl.constexpr, VALUE_SIZE: tl.constexpr,
    VALUE_BLOCKS: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr, PURE: tl.constexpr,
    TYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of the features of a stretch, for one block of value columns; LOCAL: before each segment of it, too."""
    stretch, row = job_and_row(rows)
    tile, part = tl.program_id(1) // VALUE_BLOCKS, tl.program_id(1) % VALUE_BLOCKS
    batch, memory_head = row // memory_heads, row % memory_heads
    features = tile * TILE + tl.arange(0, TILE)
    columns = part * VALUE_SIZE + tl.arange(0, VALUE_SIZE)
    place = features[:, None] * (VALUE_SIZE * VALUE_BLOCKS) + columns[None, :]
    sums = tl.zeros([TILE, VALUE_SIZE], tl.float32)
    norms = tl.zeros([TILE], tl.float32)
    weight = tl.full([TILE], 1.0, tl.float32)
    if WEIGHS:
        weight = tl.load(weights_pointer + features)
    rate = 0.0
    if DECAYS:
        rate = tl.load(decay_pointer + memory_head)
    # loaded here: stores inside of the loop keep the compiler from moving loads out of it
    one, two, b, bias = CHOSEN(features, first_pointer, second_pointer, biases_pointer, KEY_SIZE, WIDTH)
    members = tl.maximum(x_heads // memory_heads, 1)
    low = stretch * per * SEGMENT
    blocks = (tl.minimum(low + per * SEGMENT, length) - low + BLOCK - 1) // BLOCK
    for number in range(blocks * members):
        block = number // members
        if REVERSE:
            block = blocks - 1 - block
        start = low + block * BLOCK
        if LOCAL:
            border = block % (SEGMENT // BLOCK) == 0
            if REVERSE:
                border = ((block + 1) % (SEGMENT // BLOCK) == 0) | (block == blocks - 1)
            if border & (number % members == 0):
                base = (row.to(tl.int64) * slots + start // SEGMENT) * WIDTH
                kept = (sums * weight[:, None]).to(prefix_pointer.dtype.element_ty)
                tl.store(prefix_pointer + base * (VALUE_SIZE * VALUE_BLOCKS) + place, kept)
                if NORMALIZES:
                    tl.store(prefix_norms_pointer + base + features, norms * weight)
        head = memory_head * x_heads // memory_heads + number % members
        flat = (batch.to(tl.int64) * x_heads + head) * length
        tokens = start + tl.arange(0, BLOCK)
        valid = tokens < length
        if HIDING:
            valid &= tl.load(seen_pointer + batch.to(tl.int64) * length + tokens, mask=valid, other=0) != 0
        x = load_rows(x_pointer, batch, head, start, x_b, x_h, x_t, valid, KEY_DIM, KEY_SIZE, KEY_DIM == KEY_SIZE)
        c = load_rows(c_pointer + part * VALUE_SIZE, batch, head, start, c_b, c_h, c_t, valid,
                  VALUE_DIM - part * VALUE_SIZE, VALUE_SIZE, VALUE_DIM % VALUE_SIZE == 0).to(TYPE)  # fmt: skip
        # turned round, so that the features are the left operand of the next product and stay in registers
        p = TURNED(x, one, two, b, bias, features, scale, KEY_DIM, KEY_SIZE, TYPE, PRECISION)
        if DECAYS:
            p *= tl.exp(-rate * ages(tokens, start // SEGMENT, length, SEGMENT, not REVERSE))[None, :]
        if NORMALIZES:
            if SHARED:
                norms += tl.sum(p * tl.load(extra_pointer + flat + tokens, mask=valid, other=0.0)[None, :], 1)
            else:
                norms += tl.sum(tl.where(valid[None, :], p, 0.0), 1)
        if SHARED:
            p *= tl.load(share_pointer + flat + tokens, mask=valid, other=0.0)[None, :]
        sums = tl.dot(p.to(TYPE), c, sums, input_precision=PRECISION)
    base = (row.to(tl.int64) * stretches + stretch) * WIDTH
    tl.store(sums_pointer + base * (VALUE_SIZE * VALUE_BLOCKS) + place, sums)
    if NORMALIZES and part == 0:
        tl.store(norms_pointer + base + features, norms)


@triton.jit
def _run(
    sums_pointer, initial_pointer, other_pointer, prefix_pointer, final_pointer, weights_pointer, lost_pointer, rate,
    block, size, columns, segments, slots, length,
    WEIGHS: tl.constexpr, STARTED: tl.constexpr, PREFIXES: tl.constexpr, DECAYS: tl.constexpr,
    REVERSE: tl.constexpr, LOSES: tl.constexpr, SEGMENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Running sums of one block of the `size` numbers that each segment has."""
    row = tl.program_id(0).to(tl.int64)
    place = block * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    total = tl.zeros([BLOCK], tl.float32)
    if STARTED:
        total += tl.load(initial_pointer + row * size + place, mask=inside, other=0.0)
    weight = tl.full([BLOCK], 1.0, tl.float32)
    if WEIGHS:
        weight = tl.load(weights_pointer + place // columns, mask=inside, other=0.0)
    lost = tl.zeros([BLOCK], tl.float32)
    for number in range(segments):
        segment = number
        if REVERSE:
            segment = segments - 1 - number
        here = (row * segments + segment) * size + place
        if PREFIXES:
            slot = (row * slots + slots - segments + segment) * size + place
            tl.store(prefix_pointer + slot, (total * weight).to(prefix_pointer.dtype.element_ty), mask=inside)
        if DECAYS:
            tokens = tl.minimum((segment + 1) * SEGMENT, length) - segment * SEGMENT
            total *= tl.exp(-rate * tokens)
            if LOSES:
                lost += tokens * total * tl.load(other_pointer + here, mask=inside, other=0.0)
        total += tl.load(sums_pointer + here, mask=inside, other=0.0)
    tl.store(final_pointer + row * size + place, total, mask=inside)
    if LOSES:
        tl.store(lost_pointer + row * tl.num_programs(1) + tl.program_id(1), tl.sum(lost, 0))


@triton.jit
def scan(
    sums_pointer, initial_pointer, other_pointer, prefix_pointer, final_pointer,
    norms_pointer, initial_norms_pointer, other_norms_pointer, prefix_norms_pointer, final_norms_pointer,
    decay_pointer, weights_pointer, lost_pointer,
    features, columns, segments, slots, length, memory_heads,
    SUM_BLOCKS: tl.constexpr, WEIGHS: tl.constexpr, STARTED: tl.constexpr, PREFIXES: tl.constexpr, DECAYS: tl.constexpr,
    REVERSE: tl.constexpr, LOSES: tl.constexpr, SEGMENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Running sums over segments, each feature by its weight: of features with values, and of features alone.

    `lost` gathers the gradient of the decay between segments.
    """
    block = tl.program_id(1)
    rate = 0.0
    if DECAYS:
        rate = tl.load(decay_pointer + tl.program_id(0) % memory_heads)
    if block < SUM_BLOCKS:
        _run(sums_pointer, initial_pointer, other_pointer, prefix_pointer, final_pointer, weights_pointer, lost_pointer,
             rate, block, features * columns, columns, segments, slots, length,
             WEIGHS, STARTED, PREFIXES, DECAYS, REVERSE, LOSES, SEGMENT, BLOCK)  # fmt: skip
    else:
        _run(norms_pointer, initial_norms_pointer, other_norms_pointer, prefix_norms_pointer, final_norms_pointer,
             weights_pointer, lost_pointer, rate, block - SUM_BLOCKS, features, 1, segments, slots, length,
             WEIGHS, STARTED, PREFIXES, DECAYS, REVERSE, LOSES, SEGMENT, BLOCK)  # fmt: skip
