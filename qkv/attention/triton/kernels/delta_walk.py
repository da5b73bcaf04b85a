"""Kernel of the walk through a sequence: states, what each token writes, and outputs.

A program takes some value columns of one segment, chunk by chunk, with the state in registers.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from qkv.attention.triton.kernels.common import Pointer, load_rows, store_rows
from qkv.attention.triton.kernels.delta_common import (
    CHUNK,
    load_factors,
    load_keep,
    load_state,
    matrix_offsets,
    split_factors,
    state_offsets,
    store_state,
    token_offsets,
)


class WalkPointers(NamedTuple):
    """Tensors of `delta_walk`; None for those that a call does not need."""

    q: Pointer
    """None if no outputs are wanted."""
    k: Pointer
    v: Pointer
    """None: values of 0, and a state that starts as the identity."""
    gates: Pointer
    inverse: Pointer
    initial: Pointer
    """State before each segment: (rows, segments, KEY_DIM, VALUE_DIM)."""
    final: Pointer
    """State after each segment."""
    out: Pointer
    states: Pointer
    """State before each chunk, transposed: (rows, chunks, PADDED_V, BLOCK_K)."""
    updates: Pointer
    """U: (rows, chunks * CHUNK, PADDED_V)."""
    factors: Pointer
    pairs: Pointer


@triton.jit
def delta_walk(pointers, strides, sizes, TILES: tl.constexpr):
    """Walk through one segment, for one tile of value columns."""
    row, first, segment = tl.program_id(0), tl.program_id(1) * TILES.BLOCK_V, tl.program_id(2)
    batch, head = row // sizes.heads, row % sizes.heads
    key_head = head * sizes.key_heads // sizes.heads
    place = row.to(tl.int64) * tl.num_programs(2) + segment
    state = tl.zeros([TILES.BLOCK_V, TILES.BLOCK_K], tl.float32)
    if pointers.v is None:
        columns = first + tl.arange(0, TILES.BLOCK_V)  # [BLOCK_V]
        state = tl.where(columns[:, None] == tl.arange(0, TILES.BLOCK_K)[None, :], 1.0, 0.0)
    elif TILES.HAS_STATE:
        state = load_state(pointers.initial, place, first, TILES)  # [BLOCK_V, BLOCK_K]
    begin = segment * sizes.segment_chunks
    end = tl.minimum(begin + sizes.segment_chunks, sizes.chunks)
    next_factors = load_factors(pointers.factors, row, begin, sizes, TILES)
    next_keep = load_keep(pointers.gates, row, begin, sizes)
    for chunk in range(begin, end):
        factors, keep, following = next_factors, next_keep, tl.minimum(chunk + 1, end - 1)
        next_factors = load_factors(pointers.factors, row, following, sizes, TILES)
        next_keep = load_keep(pointers.gates, row, following, sizes)
        _, _, read, write = split_factors(factors[0])
        start = chunk * CHUNK
        index = row.to(tl.int64) * sizes.chunks + chunk
        valid = start + tl.arange(0, CHUNK) < sizes.length
        k = load_rows(pointers.k, strides.k, batch, key_head, start, valid, TILES.KEY_DIM, TILES.BLOCK_K,
                      TILES.KEY_DIM == TILES.BLOCK_K).to(TILES.DTYPE)  # [CHUNK, BLOCK_K]  # fmt: skip
        inverse = tl.load(pointers.inverse + index * (CHUNK * CHUNK) + matrix_offsets())  # [CHUNK, CHUNK]
        rounded = state.to(TILES.DTYPE)
        if pointers.states is not None:
            at = pointers.states + index * (TILES.BLOCK_K * TILES.PADDED_V) + state_offsets(first, TILES)
            tl.store(at, rounded)  # [BLOCK_V, BLOCK_K]
        # [BLOCK_V, BLOCK_K] x [BLOCK_K, CHUNK]
        errors = tl.dot(rounded, tl.trans(k), input_precision=TILES.PRECISION) * read[None, :]
        if pointers.v is not None:
            v = load_rows(pointers.v + first, strides.v, batch, key_head, start, valid, TILES.VALUE_DIM - first,
                          TILES.BLOCK_V, TILES.VALUE_DIM == TILES.PADDED_V)  # [CHUNK, BLOCK_V]  # fmt: skip
            errors += tl.trans(v).to(tl.float32)
        # [BLOCK_V, CHUNK] x [CHUNK, CHUNK]
        updates = tl.dot(errors.to(TILES.DTYPE), tl.trans(inverse), input_precision=TILES.PRECISION)
        if pointers.updates is not None:
            at = pointers.updates + index * (CHUNK * TILES.PADDED_V) + token_offsets(first, TILES)
            tl.store(at, tl.trans(updates.to(TILES.DTYPE)))  # [CHUNK, BLOCK_V]
        if pointers.q is not None:
            for member in tl.static_range(TILES.GROUP):
                _store_outputs(
                    rounded, updates, factors[member], row, member, chunk, first, pointers, strides, sizes, TILES
                )
        # [BLOCK_V, CHUNK] x [CHUNK, BLOCK_K]
        state = tl.dot((updates * write[None, :]).to(TILES.DTYPE), k, state * keep, input_precision=TILES.PRECISION)
    store_state(pointers.final, state, place, first, TILES)


@triton.jit
def _store_outputs(state, updates, factors, row, member, chunk, first, pointers, strides, sizes, TILES: tl.constexpr):
    """Compute the outputs of one query head in one chunk, transposed: scale (exp(-d) Q S + P U)."""
    batch, query_head = row // sizes.heads, row % sizes.heads * TILES.GROUP + member
    query_index = (row.to(tl.int64) * TILES.GROUP + member) * sizes.chunks + chunk
    start = chunk * CHUNK
    valid = start + tl.arange(0, CHUNK) < sizes.length
    q = load_rows(pointers.q, strides.q, batch, query_head, start, valid, TILES.KEY_DIM, TILES.BLOCK_K,
                  TILES.KEY_DIM == TILES.BLOCK_K).to(TILES.DTYPE)  # [CHUNK, BLOCK_K]  # fmt: skip
    pairs = tl.load(pointers.pairs + query_index * (CHUNK * CHUNK) + matrix_offsets())  # [CHUNK, CHUNK]
    _, asks, _, _ = split_factors(factors)
    # [BLOCK_V, BLOCK_K] x [BLOCK_K, CHUNK]
    out = tl.dot(state, tl.trans(q), input_precision=TILES.PRECISION) * asks[None, :]
    # [BLOCK_V, CHUNK] x [CHUNK, CHUNK]
    out = tl.dot(updates.to(TILES.DTYPE), tl.trans(pairs), out, input_precision=TILES.PRECISION)
    store_rows(pointers.out + first, tl.trans(out), strides.out, batch, query_head, start, valid,
               TILES.VALUE_DIM - first, TILES.BLOCK_V,
               TILES.VALUE_DIM == TILES.PADDED_V)  # [CHUNK, BLOCK_V]  # fmt: skip


class JoinPointers(NamedTuple):
    """Tensors of `delta_join`."""

    transitions: Pointer
    """State after each segment if it begins as the identity and values are 0: (rows, segments, KEY_DIM, KEY_DIM)."""
    local: Pointer
    """State after each segment if it begins as 0: (rows, segments, KEY_DIM, VALUE_DIM)."""
    initial: Pointer
    states: Pointer
    """State before each segment, like `local`."""


@triton.jit
def delta_join(pointers, segments, TILES: tl.constexpr):
    """Compute the state before each segment, for one tile of value columns."""
    row, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * TILES.BLOCK_V
    state = tl.zeros([TILES.BLOCK_V, TILES.BLOCK_K], tl.float32)
    if TILES.HAS_STATE:
        state = load_state(pointers.initial, row, first, TILES)  # [BLOCK_V, BLOCK_K]
    keys = tl.arange(0, TILES.BLOCK_K)  # [BLOCK_K]
    inside = (keys < TILES.KEY_DIM)[:, None] & (keys < TILES.KEY_DIM)[None, :]
    for segment in range(segments):
        place = row * segments + segment
        store_state(pointers.states, state, place, first, TILES)
        at = pointers.transitions + place * (TILES.KEY_DIM * TILES.KEY_DIM)
        at += keys[:, None] * TILES.KEY_DIM + keys[None, :]
        transition = tl.load(at, mask=inside, other=0.0)  # [BLOCK_K, BLOCK_K]
        added = load_state(pointers.local, place, first, TILES)  # [BLOCK_V, BLOCK_K]
        # [BLOCK_V, BLOCK_K] x [BLOCK_K, BLOCK_K]
        state = tl.dot(state, tl.trans(transition), added, input_precision="tf32x3")
