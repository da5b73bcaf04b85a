"""The kernels of all feature-map kinds: four passes, forward and backward alike.

    states   the sum over each segment's tokens of features(x) c', and of features(x) alone
    scan     the running sum of those, from the first segment on or from the last one back
    read     out_i = sum_j weight(a_i, b_j) c_j inside the segment + features(a_i)' prefix
    pull     the gradient of a_i: sum_j slope(a_i, b_j) (g_i.c_j + e) b_j + features'(a_i) (prefix g_i)

Segments are independent between the scans, so a chip is filled by few heads too. The backward needs no
kernels of its own, since the gradient of a value is a reading with the roles exchanged and the order
reversed: dv = read(k; q, dout), dq = pull(q; k, v), dk = pull(k; q, dout). Nothing is added atomically: the
same input gives the same bits. What a kind is, is four small functions that are passed in (`taylor_triton`,
`linear_triton`). Grouped heads share keys, values and memory; with decay every head has its own of each.

A token's `share` multiplies its weight (1 / normaliser in the backward); `extra` is what it adds to the
normaliser's column (1 in the forward, if it is seen). With decay, what a segment writes has aged since the token
(`falling`), and what it reads since the segment's border (`rising`); reversed, the two are exchanged.
"""

import triton
import triton.language as tl


@triton.jit
def _rows(
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
def _ages(tokens, segment, length, SEGMENT: tl.constexpr, FALLING: tl.constexpr):
    """How far a token is from the border of its segment: its end (falling) or the token before its start (rising)."""
    if FALLING:
        age = tl.minimum((segment + 1) * SEGMENT, length) - 1 - tokens
    else:
        age = tokens - segment * SEGMENT + 1
    return age


@triton.jit
def states(
    x_pointer, c_pointer, first_pointer, second_pointer, biases_pointer, weights_pointer,
    share_pointer, extra_pointer, seen_pointer, decay_pointer, sums_pointer, norms_pointer,
    prefix_pointer, prefix_norms_pointer, x_b, x_h, x_t, c_b, c_h, c_t,
    length, per, stretches, slots, rows, memory_heads, x_heads, scale,
    FEATURES: tl.constexpr, NORMALISES: tl.constexpr, SHARED: tl.constexpr, HIDING: tl.constexpr,
    DECAYS: tl.constexpr, REVERSE: tl.constexpr, LOCAL: tl.constexpr, WEIGHS: tl.constexpr,
    SEGMENT: tl.constexpr, BLOCK: tl.constexpr,
    KEY_DIM: tl.constexpr, KEY_SIZE: tl.constexpr, VALUE_DIM: tl.constexpr, VALUE_SIZE: tl.constexpr,
    VALUE_BLOCKS: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr, PURE: tl.constexpr,
    TYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of the features of a stretch, for one block of value columns; LOCAL: before each segment of it, too."""
    stretch, row = _job(rows)
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
                if NORMALISES:
                    tl.store(prefix_norms_pointer + base + features, norms * weight)
        head = memory_head * x_heads // memory_heads + number % members
        flat = (batch.to(tl.int64) * x_heads + head) * length
        tokens = start + tl.arange(0, BLOCK)
        valid = tokens < length
        if HIDING:
            valid &= tl.load(seen_pointer + batch.to(tl.int64) * length + tokens, mask=valid, other=0) != 0
        x = _rows(x_pointer, batch, head, start, x_b, x_h, x_t, valid, KEY_DIM, KEY_SIZE, KEY_DIM == KEY_SIZE)
        c = _rows(c_pointer + part * VALUE_SIZE, batch, head, start, c_b, c_h, c_t, valid,
                  VALUE_DIM - part * VALUE_SIZE, VALUE_SIZE, VALUE_DIM % VALUE_SIZE == 0).to(TYPE)  # fmt: skip
        # turned round, so that the features are the left operand of the next product and stay in registers
        p = FEATURES(x.to(TYPE), features, first_pointer, second_pointer, biases_pointer, scale, False, True,
                     KEY_DIM, KEY_SIZE, WIDTH, PRECISION)  # fmt: skip
        if DECAYS:
            p *= tl.exp(-rate * _ages(tokens, start // SEGMENT, length, SEGMENT, not REVERSE))[None, :]
        if NORMALISES:
            if SHARED:
                norms += tl.sum(p * tl.load(extra_pointer + flat + tokens, mask=valid, other=0.0)[None, :], 1)
            else:
                norms += tl.sum(tl.where(valid[None, :], p, 0.0), 1)
        if SHARED:
            p *= tl.load(share_pointer + flat + tokens, mask=valid, other=0.0)[None, :]
        sums = tl.dot(p.to(TYPE), c, sums, input_precision=PRECISION)
    base = (row.to(tl.int64) * stretches + stretch) * WIDTH
    tl.store(sums_pointer + base * (VALUE_SIZE * VALUE_BLOCKS) + place, sums)
    if NORMALISES and part == 0:
        tl.store(norms_pointer + base + features, norms)


@triton.jit
def scan(
    sums_pointer, initial_pointer, other_pointer, decay_pointer, weights_pointer, prefix_pointer, final_pointer,
    lost_pointer, size, columns, segments, slots, length, memory_heads,
    WEIGHS: tl.constexpr, STARTED: tl.constexpr, PREFIXES: tl.constexpr, DECAYS: tl.constexpr,
    REVERSE: tl.constexpr, LOSES: tl.constexpr, SEGMENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Running sums of `size` numbers per segment, each feature by its weight.

    `lost` gathers the gradient of the decay between segments.
    """
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    place = block * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    total = tl.zeros([BLOCK], tl.float32)
    if STARTED:
        total += tl.load(initial_pointer + row * size + place, mask=inside, other=0.0)
    weight = tl.full([BLOCK], 1.0, tl.float32)
    if WEIGHS:
        weight = tl.load(weights_pointer + place // columns, mask=inside, other=0.0)
    lost = tl.zeros([BLOCK], tl.float32)
    rate = 0.0
    if DECAYS:
        rate = tl.load(decay_pointer + row % memory_heads)
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
        tl.store(lost_pointer + row * tl.num_programs(1) + block, tl.sum(lost, 0))


@triton.jit
def read(
    a_pointer, b_pointer, c_pointer, first_pointer, second_pointer, biases_pointer,
    share_pointer, seen_pointer, decay_pointer, prefix_pointer, norms_pointer, out_pointer, inverse_pointer,
    a_b, a_h, a_t, b_b, b_h, b_t, c_b, c_h, c_t, o_b, o_h, o_t,
    a_length, b_length, rows, a_heads, b_heads, memory_heads, stretches, per, slots,
    a_scale, b_scale, score_scale, result_scale,
    LIFT: tl.constexpr, WEIGHT: tl.constexpr, FEATURES: tl.constexpr, EXPANDS: tl.constexpr,
    NORMALISES: tl.constexpr, SHARED: tl.constexpr, HIDING: tl.constexpr, DECAYS: tl.constexpr,
    REVERSE: tl.constexpr, INSIDE: tl.constexpr, LOCAL: tl.constexpr, BEFORE: tl.constexpr, SEGMENT: tl.constexpr,
    A_BLOCK: tl.constexpr, B_BLOCK: tl.constexpr, KEY_DIM: tl.constexpr, KEY_SIZE: tl.constexpr,
    VALUE_DIM: tl.constexpr, VALUE_SIZE: tl.constexpr, VALUE_BLOCKS: tl.constexpr,
    WIDTH: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr, PURE: tl.constexpr, TYPE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A block of outputs: of the forward, or (reversed) of the gradient of the values.

    INSIDE: "" reads the memory alone, "causal" attends in the segment too, "all" attends to every token.
    """
    job, row = _job(rows)
    part, here = job % VALUE_BLOCKS, job // VALUE_BLOCKS * A_BLOCK
    batch, a_head = row // a_heads, row % a_heads
    tokens, segment = here + tl.arange(0, A_BLOCK), here // SEGMENT
    valid = tokens < a_length
    if HIDING and REVERSE:
        valid &= tl.load(seen_pointer + batch.to(tl.int64) * a_length + tokens, mask=valid, other=0) != 0
    raw = _rows(a_pointer, batch, a_head, here, a_b, a_h, a_t, valid, KEY_DIM, KEY_SIZE, KEY_DIM == KEY_SIZE)
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
                prefix_pointer, norms_pointer, a_scale, FEATURES, EXPANDS, NORMALISES, LOCAL, BEFORE, True,
                KEY_DIM, KEY_SIZE, VALUE_SIZE, VALUE_BLOCKS, WIDTH, TILE, TYPE, PRECISION,
            )  # fmt: skip
        for tile in range(PURE, TILES):
            out, norm = _recalled(
                out, norm, a, raw, tile, part, local, before, first_pointer, second_pointer, biases_pointer,
                prefix_pointer, norms_pointer, a_scale, FEATURES, EXPANDS, NORMALISES, LOCAL, BEFORE, False,
                KEY_DIM, KEY_SIZE, VALUE_SIZE, VALUE_BLOCKS, WIDTH, TILE, TYPE, PRECISION,
            )  # fmt: skip
        if DECAYS:
            fade = tl.exp(-rate * _ages(tokens, segment, a_length, SEGMENT, REVERSE))
            out *= fade[:, None]
            norm *= fade
    if INSIDE != "":
        low, high, ordered_low, ordered_high = _reach(
            here, segment, b_length, INSIDE, REVERSE, SEGMENT, A_BLOCK, B_BLOCK
        )
        for member in range(tl.maximum(b_heads // a_heads, 1)):
            head = a_head * b_heads // a_heads + member
            for start in range(low, high, B_BLOCK):
                out, norm = _weighed(
                    out, norm, a, tokens, start, b_pointer, c_pointer + part * VALUE_SIZE, share_pointer, seen_pointer,
                    b_b, b_h, b_t, c_b, c_h, c_t, batch, head, b_heads, b_length, b_scale, score_scale, rate, room,
                    LIFT, WEIGHT, NORMALISES, SHARED, HIDING, DECAYS, REVERSE, INSIDE, False, B_BLOCK,
                    KEY_DIM, KEY_SIZE, VALUE_DIM, VALUE_SIZE, TYPE, PRECISION,
                )  # fmt: skip
            for start in range(ordered_low, ordered_high, B_BLOCK):
                out, norm = _weighed(
                    out, norm, a, tokens, start, b_pointer, c_pointer + part * VALUE_SIZE, share_pointer, seen_pointer,
                    b_b, b_h, b_t, c_b, c_h, c_t, batch, head, b_heads, b_length, b_scale, score_scale, rate, room,
                    LIFT, WEIGHT, NORMALISES, SHARED, HIDING, DECAYS, REVERSE, INSIDE, True, B_BLOCK,
                    KEY_DIM, KEY_SIZE, VALUE_DIM, VALUE_SIZE, TYPE, PRECISION,
                )  # fmt: skip
    out *= result_scale
    if NORMALISES:
        inverse = 1.0 / tl.where(valid & (norm != 0.0), norm, 1.0)
        out *= inverse[:, None]
        if part == 0:
            flat = (batch.to(tl.int64) * a_heads + a_head) * a_length
            tl.store(inverse_pointer + flat + tokens, inverse, mask=tokens < a_length)
    if HIDING and REVERSE:
        out = tl.where(valid[:, None], out, 0.0)
    _store(out_pointer + part * VALUE_SIZE, out, batch, a_head, here, o_b, o_h, o_t, tokens < a_length, room,
           VALUE_SIZE, VALUE_DIM % VALUE_SIZE == 0)  # fmt: skip


@triton.jit
def _recalled(
    out, norm, a, raw, tile, part, local, before, first_pointer, second_pointer, biases_pointer,
    prefix_pointer, norms_pointer, a_scale, FEATURES: tl.constexpr, EXPANDS: tl.constexpr, NORMALISES: tl.constexpr,
    LOCAL: tl.constexpr, BEFORE: tl.constexpr, PURE: tl.constexpr,
    KEY_DIM: tl.constexpr, KEY_SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr, VALUE_BLOCKS: tl.constexpr,
    WIDTH: tl.constexpr, TILE: tl.constexpr, TYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`out` and `norm` with what one more tile of features reads from the memory."""
    features = tile * TILE + tl.arange(0, TILE)
    columns = part * VALUE_SIZE + tl.arange(0, VALUE_SIZE)
    p = a
    if EXPANDS:
        p = FEATURES(raw.to(TYPE), features, first_pointer, second_pointer, biases_pointer, a_scale, PURE, False,
                     KEY_DIM, KEY_SIZE, WIDTH, PRECISION)  # fmt: skip
    if NORMALISES:
        norm += tl.sum(p * _both(norms_pointer, local, before, features, LOCAL, BEFORE)[None, :], 1)
    places = features[:, None] * (VALUE_SIZE * VALUE_BLOCKS) + columns[None, :]
    stride = VALUE_SIZE * VALUE_BLOCKS
    kept = _both(prefix_pointer, local * stride, before * stride, places, LOCAL, BEFORE)
    return tl.dot(p.to(TYPE), kept, out, input_precision=PRECISION), norm


@triton.jit
def _both(pointer, local, before, places, LOCAL: tl.constexpr, BEFORE: tl.constexpr):
    """What came before in the stretch, and before the stretch."""
    if LOCAL and BEFORE:
        kept = tl.load(pointer + local + places) + tl.load(pointer + before + places)
    elif LOCAL:
        kept = tl.load(pointer + local + places)
    else:
        kept = tl.load(pointer + before + places)
    return kept


@triton.jit
def _weighed(
    out, norm, a, tokens, start, b_pointer, c_pointer, share_pointer, seen_pointer,
    b_b, b_h, b_t, c_b, c_h, c_t, batch, head, b_heads, b_length, b_scale, score_scale, rate, room,
    LIFT: tl.constexpr, WEIGHT: tl.constexpr, NORMALISES: tl.constexpr, SHARED: tl.constexpr, HIDING: tl.constexpr,
    DECAYS: tl.constexpr, REVERSE: tl.constexpr, INSIDE: tl.constexpr, ORDERED: tl.constexpr, B_BLOCK: tl.constexpr,
    KEY_DIM: tl.constexpr, KEY_SIZE: tl.constexpr, VALUE_DIM: tl.constexpr, VALUE_SIZE: tl.constexpr,
    TYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`out` and `norm` with one more block of tokens, each by its weight."""
    others = start + tl.arange(0, B_BLOCK)
    there = others < b_length
    if HIDING and not REVERSE:
        there &= tl.load(seen_pointer + batch.to(tl.int64) * b_length + others, mask=there, other=0) != 0
    b = _rows(b_pointer, batch, head, start, b_b, b_h, b_t, there, KEY_DIM, KEY_SIZE, KEY_DIM == KEY_SIZE)
    b = LIFT(b, there, b_scale, HIDING or INSIDE == "all", KEY_DIM, KEY_SIZE).to(TYPE)
    c = _rows(c_pointer, batch, head, start, c_b, c_h, c_t, there, room, VALUE_SIZE, VALUE_DIM % VALUE_SIZE == 0)
    w = WEIGHT(tl.dot(a, tl.trans(b), input_precision=PRECISION), score_scale)
    w = _visible(w, tokens, others, rate, ORDERED, REVERSE, DECAYS and INSIDE == "causal")
    if SHARED:
        flat = (batch.to(tl.int64) * b_heads + head) * b_length
        w *= tl.load(share_pointer + flat + others, mask=there, other=0.0)[None, :]
    if NORMALISES:
        if HIDING or INSIDE == "all":  # a key that is not there weighs 1, not 0, in a polynomial
            w = tl.where(there[None, :], w, 0.0)
        norm += tl.sum(w, 1)
    return tl.dot(w.to(TYPE), c.to(TYPE), out, input_precision=PRECISION), norm


@triton.jit
def pull(
    a_pointer, b_pointer, c_pointer, g_pointer, first_pointer, second_pointer, biases_pointer,
    share_pointer, extra_pointer, seen_pointer, decay_pointer, prefix_pointer, norms_pointer,
    out_pointer, lost_pointer,
    a_b, a_h, a_t, b_b, b_h, b_t, c_b, c_h, c_t, g_b, g_h, g_t, o_b, o_h, o_t,
    a_length, b_length, rows, a_heads, b_heads, memory_heads, stretches, per, slots,
    a_scale, b_scale, score_scale, result_scale,
    LIFT: tl.constexpr, LOWER: tl.constexpr, WEIGHT: tl.constexpr, SLOPE: tl.constexpr,
    FEATURES: tl.constexpr, PULL: tl.constexpr,
    NORMALISES: tl.constexpr, HIDING: tl.constexpr, DECAYS: tl.constexpr, LOSES: tl.constexpr,
    REVERSE: tl.constexpr, INSIDE: tl.constexpr, LOCAL: tl.constexpr, BEFORE: tl.constexpr, SEGMENT: tl.constexpr,
    A_BLOCK: tl.constexpr, B_BLOCK: tl.constexpr, KEY_DIM: tl.constexpr, KEY_SIZE: tl.constexpr,
    VALUE_DIM: tl.constexpr, VALUE_SIZE: tl.constexpr, VALUE_BLOCKS: tl.constexpr,
    WIDTH: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr, PURE: tl.constexpr, TYPE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A block of gradients: of the queries, or (reversed) of the keys.

    `share` and `extra` belong to the queries, which are the a of the forward order and the b of the reverse.
    """
    job, row = _job(rows)
    here = job * A_BLOCK
    batch, a_head = row // a_heads, row % a_heads
    tokens, segment = here + tl.arange(0, A_BLOCK), here // SEGMENT
    valid = tokens < a_length
    if HIDING and REVERSE:
        valid &= tl.load(seen_pointer + batch.to(tl.int64) * a_length + tokens, mask=valid, other=0) != 0
    raw = _rows(a_pointer, batch, a_head, here, a_b, a_h, a_t, valid, KEY_DIM, KEY_SIZE, KEY_DIM == KEY_SIZE)
    a = LIFT(raw, valid, a_scale, False, KEY_DIM, KEY_SIZE).to(TYPE)
    g = _rows(g_pointer, batch, a_head, here, g_b, g_h, g_t, valid, VALUE_DIM, VALUE_SIZE, VALUE_DIM >= VALUE_SIZE)
    share = tl.full([A_BLOCK], 1.0, tl.float32)
    extra = tl.full([A_BLOCK], 1.0, tl.float32)
    if NORMALISES and not REVERSE:
        flat = (batch.to(tl.int64) * a_heads + a_head) * a_length
        share = tl.load(share_pointer + flat + tokens, mask=valid, other=0.0)
        extra = tl.load(extra_pointer + flat + tokens, mask=valid, other=0.0)
    out = tl.zeros([A_BLOCK, KEY_SIZE], tl.float32)
    lost = tl.zeros([A_BLOCK], tl.float32)
    rate = 0.0
    if DECAYS:
        rate = tl.load(decay_pointer + a_head)
    if LOCAL or BEFORE:
        memory = batch.to(tl.int64) * memory_heads + a_head * memory_heads // a_heads
        local = (memory * slots + segment) * WIDTH
        before = (memory * slots + slots - stretches + tl.minimum(segment // per, stretches - 1)) * WIDTH
        age = _ages(tokens, segment, a_length, SEGMENT, REVERSE).to(tl.float32)
        for tile in range(PURE):
            out, lost = _reached(
                out, lost, raw, g, share, extra, age, rate, tile, local, before, valid, here, batch, a_head,
                g_pointer, first_pointer, second_pointer, biases_pointer, prefix_pointer, norms_pointer,
                g_b, g_h, g_t, a_scale, FEATURES, PULL, NORMALISES, DECAYS, LOSES, LOCAL, BEFORE, True,
                KEY_DIM, KEY_SIZE, VALUE_DIM, VALUE_SIZE, VALUE_BLOCKS, WIDTH, TILE, TYPE, PRECISION,
            )  # fmt: skip
        for tile in range(PURE, TILES):
            out, lost = _reached(
                out, lost, raw, g, share, extra, age, rate, tile, local, before, valid, here, batch, a_head,
                g_pointer, first_pointer, second_pointer, biases_pointer, prefix_pointer, norms_pointer,
                g_b, g_h, g_t, a_scale, FEATURES, PULL, NORMALISES, DECAYS, LOSES, LOCAL, BEFORE, False,
                KEY_DIM, KEY_SIZE, VALUE_DIM, VALUE_SIZE, VALUE_BLOCKS, WIDTH, TILE, TYPE, PRECISION,
            )  # fmt: skip
    if INSIDE != "":
        low, high, ordered_low, ordered_high = _reach(
            here, segment, b_length, INSIDE, REVERSE, SEGMENT, A_BLOCK, B_BLOCK
        )
        for member in range(tl.maximum(b_heads // a_heads, 1)):
            head = a_head * b_heads // a_heads + member
            for start in range(low, high, B_BLOCK):
                out, lost = _followed(
                    out, lost, a, g, share, extra, tokens, valid, here, start,
                    b_pointer, c_pointer, g_pointer, share_pointer, extra_pointer, seen_pointer,
                    b_b, b_h, b_t, c_b, c_h, c_t, g_b, g_h, g_t, batch, a_head, head, b_heads, b_length,
                    b_scale, score_scale, rate, LIFT, WEIGHT, SLOPE, NORMALISES, HIDING, DECAYS, LOSES, REVERSE, INSIDE,
                    False, B_BLOCK, KEY_DIM, KEY_SIZE, VALUE_DIM, VALUE_SIZE, VALUE_BLOCKS, TYPE, PRECISION,
                )  # fmt: skip
            for start in range(ordered_low, ordered_high, B_BLOCK):
                out, lost = _followed(
                    out, lost, a, g, share, extra, tokens, valid, here, start,
                    b_pointer, c_pointer, g_pointer, share_pointer, extra_pointer, seen_pointer,
                    b_b, b_h, b_t, c_b, c_h, c_t, g_b, g_h, g_t, batch, a_head, head, b_heads, b_length,
                    b_scale, score_scale, rate, LIFT, WEIGHT, SLOPE, NORMALISES, HIDING, DECAYS, LOSES, REVERSE, INSIDE,
                    True, B_BLOCK, KEY_DIM, KEY_SIZE, VALUE_DIM, VALUE_SIZE, VALUE_BLOCKS, TYPE, PRECISION,
                )  # fmt: skip
    out = tl.where(valid[:, None], LOWER(raw, out * result_scale, a_scale), 0.0)
    _store(out_pointer, out, batch, a_head, here, o_b, o_h, o_t, tokens < a_length, KEY_DIM, KEY_SIZE,
           KEY_DIM == KEY_SIZE)  # fmt: skip
    if LOSES:
        flat = (batch.to(tl.int64) * a_heads + a_head) * a_length
        tl.store(lost_pointer + flat + tokens, tl.where(valid, lost * result_scale, 0.0), mask=tokens < a_length)


@triton.jit
def _reached(
    out, lost, raw, g, share, extra, age, rate, tile, local, before, valid, here, batch, a_head,
    g_pointer, first_pointer, second_pointer, biases_pointer, prefix_pointer, norms_pointer,
    g_b, g_h, g_t, a_scale, FEATURES: tl.constexpr, PULL: tl.constexpr, NORMALISES: tl.constexpr, DECAYS: tl.constexpr,
    LOSES: tl.constexpr, LOCAL: tl.constexpr, BEFORE: tl.constexpr, PURE: tl.constexpr,
    KEY_DIM: tl.constexpr, KEY_SIZE: tl.constexpr, VALUE_DIM: tl.constexpr,
    VALUE_SIZE: tl.constexpr, VALUE_BLOCKS: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr, TYPE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """`out` and `lost` with what the memory wants of one more tile of features."""
    features = tile * TILE + tl.arange(0, TILE)
    wanted = tl.zeros([valid.shape[0], TILE], tl.float32)
    for part in tl.static_range(VALUE_BLOCKS):
        more = g
        if part > 0:
            more = _rows(g_pointer + part * VALUE_SIZE, batch, a_head, here, g_b, g_h, g_t, valid,
                         VALUE_DIM - part * VALUE_SIZE, VALUE_SIZE, False)  # fmt: skip
        columns = part * VALUE_SIZE + tl.arange(0, VALUE_SIZE)
        stride = VALUE_SIZE * VALUE_BLOCKS
        places = features[None, :] * stride + columns[:, None]
        kept = _both(prefix_pointer, local * stride, before * stride, places, LOCAL, BEFORE)
        wanted = tl.dot(more.to(TYPE), kept, wanted, input_precision=PRECISION)
    if NORMALISES:
        norms = _both(norms_pointer, local, before, features, LOCAL, BEFORE)
        wanted = wanted * share[:, None] + extra[:, None] * norms[None, :]
    if DECAYS:
        wanted *= tl.exp(-rate * age)[:, None]
    if LOSES:
        p = FEATURES(raw.to(TYPE), features, first_pointer, second_pointer, biases_pointer, a_scale, PURE, False,
                     KEY_DIM, KEY_SIZE, WIDTH, PRECISION)  # fmt: skip
        lost += age * tl.sum(wanted * p, 1)
    out = PULL(out, raw.to(TYPE), wanted, features, first_pointer, second_pointer, biases_pointer, PURE,
               KEY_SIZE, WIDTH, TYPE, PRECISION)  # fmt: skip
    return out, lost


@triton.jit
def _followed(
    out, lost, a, g, share, extra, tokens, valid, here, start,
    b_pointer, c_pointer, g_pointer, share_pointer, extra_pointer, seen_pointer,
    b_b, b_h, b_t, c_b, c_h, c_t, g_b, g_h, g_t, batch, a_head, head, b_heads, b_length,
    b_scale, score_scale, rate, LIFT: tl.constexpr, WEIGHT: tl.constexpr, SLOPE: tl.constexpr,
    NORMALISES: tl.constexpr, HIDING: tl.constexpr, DECAYS: tl.constexpr, LOSES: tl.constexpr,
    REVERSE: tl.constexpr, INSIDE: tl.constexpr, ORDERED: tl.constexpr, B_BLOCK: tl.constexpr,
    KEY_DIM: tl.constexpr, KEY_SIZE: tl.constexpr, VALUE_DIM: tl.constexpr, VALUE_SIZE: tl.constexpr,
    VALUE_BLOCKS: tl.constexpr, TYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`out` and `lost` with what one more block of tokens wants of this one."""
    others = start + tl.arange(0, B_BLOCK)
    there = others < b_length
    if HIDING and not REVERSE:
        there &= tl.load(seen_pointer + batch.to(tl.int64) * b_length + others, mask=there, other=0) != 0
    b = _rows(b_pointer, batch, head, start, b_b, b_h, b_t, there, KEY_DIM, KEY_SIZE, KEY_DIM == KEY_SIZE)
    b = LIFT(b, there, b_scale, HIDING or INSIDE == "all", KEY_DIM, KEY_SIZE).to(TYPE)
    wanted = tl.zeros([tokens.shape[0], B_BLOCK], tl.float32)
    for part in tl.static_range(VALUE_BLOCKS):
        room = VALUE_DIM - part * VALUE_SIZE
        more = g
        if part > 0:
            more = _rows(g_pointer + part * VALUE_SIZE, batch, a_head, here, g_b, g_h, g_t, valid, room, VALUE_SIZE,
                         False)  # fmt: skip
        c = _rows(c_pointer + part * VALUE_SIZE, batch, head, start, c_b, c_h, c_t, there, room, VALUE_SIZE,
                  VALUE_DIM % VALUE_SIZE == 0)  # fmt: skip
        wanted = tl.dot(more.to(TYPE), tl.trans(c.to(TYPE)), wanted, input_precision=PRECISION)
    if NORMALISES:
        if REVERSE:
            flat = (batch.to(tl.int64) * b_heads + head) * b_length
            wanted *= tl.load(share_pointer + flat + others, mask=there, other=0.0)[None, :]
            wanted += tl.load(extra_pointer + flat + others, mask=there, other=0.0)[None, :]
        else:
            wanted = wanted * share[:, None] + extra[:, None]
    product = tl.dot(a, tl.trans(b), input_precision=PRECISION)
    wanted = _visible(wanted, tokens, others, rate, ORDERED, REVERSE, DECAYS and INSIDE == "causal")
    if LOSES and not REVERSE:
        distance = (tokens[:, None] - others[None, :]).to(tl.float32)
        lost += tl.sum(tl.where(there[None, :], wanted * WEIGHT(product, score_scale) * distance, 0.0), 1)
    return tl.dot((wanted * SLOPE(product, score_scale)).to(TYPE), b, out, input_precision=PRECISION), lost


@triton.jit
def _job(rows):
    """What this program does, and for which row: programs that run together take the heads of the same tokens."""
    return tl.program_id(0) // rows, tl.program_id(0) % rows


@triton.jit
def _store(pointer, x, batch, head, first, stride_b, stride_h, stride_t, there, room,
           SIZE: tl.constexpr, WHOLE: tl.constexpr):  # fmt: skip
    """The other way of `_rows`."""
    columns = tl.arange(0, SIZE)
    start = pointer + batch.to(tl.int64) * stride_b + head.to(tl.int64) * stride_h
    start += tl.cast(first, tl.int64) * stride_t
    places = start + (tl.arange(0, there.shape[0])[:, None] * stride_t + columns[None, :])
    kept = there[:, None]
    if not WHOLE:
        kept = kept & (columns < room)[None, :]
    tl.store(places, x.to(pointer.dtype.element_ty), mask=kept)


@triton.jit
def _reach(
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
def _visible(w, tokens, others, rate, ORDERED: tl.constexpr, REVERSE: tl.constexpr, DECAYS: tl.constexpr):
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
def deltas(
    out_pointer, g_pointer, inverse_pointer, delta_pointer,
    o_b, o_h, o_t, g_b, g_h, g_t, length, rows, heads,
    BLOCK: tl.constexpr, VALUE_DIM: tl.constexpr, VALUE_SIZE: tl.constexpr,
):  # fmt: skip
    """The gradient of each normaliser: -(g.out) / norm."""
    job, row = _job(rows)
    batch, head, here = row // heads, row % heads, job * BLOCK
    tokens = here + tl.arange(0, BLOCK)
    valid = tokens < length
    whole: tl.constexpr = VALUE_DIM == VALUE_SIZE
    out = _rows(out_pointer, batch, head, here, o_b, o_h, o_t, valid, VALUE_DIM, VALUE_SIZE, whole).to(tl.float32)
    g = _rows(g_pointer, batch, head, here, g_b, g_h, g_t, valid, VALUE_DIM, VALUE_SIZE, whole).to(tl.float32)
    flat = row.to(tl.int64) * length + tokens
    inverse = tl.load(inverse_pointer + flat, mask=valid, other=0.0)
    tl.store(delta_pointer + flat, -tl.sum(out * g, 1) * inverse, mask=valid)
