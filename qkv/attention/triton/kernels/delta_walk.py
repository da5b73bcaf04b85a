"""Kernels that walk through the chunks of a sequence in order, and back: the state, and its gradient."""

from typing import NamedTuple

import triton
import triton.language as tl

from qkv.attention.triton.kernels.common import Pointer, load_rows, store_rows
from qkv.attention.triton.kernels.delta_common import (
    BETA,
    CHUNK,
    INVERSE,
    KEEP,
    READ,
    WRITE,
    chunk_gates,
    load_gate,
    matrix_offsets,
    state_offsets,
)


class WalkPointers(NamedTuple):
    """Tensors of `delta_walk`."""

    k: Pointer
    v: Pointer
    gates: Pointer
    inverse: Pointer
    initial: Pointer
    states: Pointer
    """State before each chunk: (rows, chunks, BLOCK_K, PADDED_V)."""
    updates: Pointer
    """U: (rows, chunks * CHUNK, PADDED_V)."""
    final: Pointer


@triton.jit
def delta_walk(pointers, strides, sizes, TILES: tl.constexpr):
    """Walk through one sequence, for one tile of value columns."""
    row, first = tl.program_id(0), tl.program_id(1) * TILES.BLOCK_V
    batch, head = row // sizes.heads, row % sizes.heads
    key_head = head * sizes.key_heads // sizes.heads
    state = tl.zeros([TILES.BLOCK_K, TILES.BLOCK_V], tl.float32)
    if TILES.HAS_STATE:
        state = _load_state(pointers.initial, row, first, TILES)  # [BLOCK_K, BLOCK_V]
    offsets, matrix = state_offsets(first, TILES), matrix_offsets()
    token_offsets = tl.arange(0, CHUNK)[:, None] * TILES.PADDED_V + (first + tl.arange(0, TILES.BLOCK_V))[None, :]
    for chunk in range(sizes.chunks):
        start = chunk * CHUNK
        index = row.to(tl.int64) * sizes.chunks + chunk
        valid = start + tl.arange(0, CHUNK) < sizes.length
        base = chunk_gates(pointers.gates, row, chunk, sizes)
        k = load_rows(pointers.k, strides.k, batch, key_head, start, valid, TILES.KEY_DIM, TILES.BLOCK_K,
                      TILES.KEY_DIM == TILES.BLOCK_K).to(TILES.DTYPE)  # [CHUNK, BLOCK_K]  # fmt: skip
        v = load_rows(pointers.v + first, strides.v, batch, key_head, start, valid, TILES.VALUE_DIM - first,
                      TILES.BLOCK_V, TILES.VALUE_DIM == TILES.PADDED_V)  # [CHUNK, BLOCK_V]  # fmt: skip
        inverse = tl.load(pointers.inverse + index * (CHUNK * CHUNK) + matrix)  # [CHUNK, CHUNK]
        length, beta = load_gate(base, INVERSE), load_gate(base, BETA)
        read, write = load_gate(base, READ) * length, load_gate(base, WRITE) * length
        keep = tl.load(base + KEEP * CHUNK)  # scalar
        rounded = state.to(TILES.DTYPE)
        tl.store(pointers.states + index * (TILES.BLOCK_K * TILES.PADDED_V) + offsets, rounded)  # [BLOCK_K, BLOCK_V]
        # [CHUNK, BLOCK_K] x [BLOCK_K, BLOCK_V]
        predicted = tl.dot(k, rounded, input_precision=TILES.PRECISION)
        errors = (v.to(tl.float32) - predicted * read[:, None]) * beta[:, None]
        # [CHUNK, CHUNK] x [CHUNK, BLOCK_V]
        updates = tl.dot(inverse, errors.to(TILES.DTYPE), input_precision=TILES.PRECISION)
        at = pointers.updates + index * (CHUNK * TILES.PADDED_V) + token_offsets
        tl.store(at, updates.to(TILES.DTYPE))  # [CHUNK, BLOCK_V]
        # [BLOCK_K, CHUNK] x [CHUNK, BLOCK_V]
        state = tl.dot(
            tl.trans(k), (updates * write[:, None]).to(TILES.DTYPE), state * keep, input_precision=TILES.PRECISION
        )
    _store_state(pointers.final, state, row, first, TILES)


class WalkBackPointers(NamedTuple):
    """Tensors of `delta_walk_back`."""

    q: Pointer
    k: Pointer
    d_out: Pointer
    gates: Pointer
    inverse: Pointer
    asks: Pointer
    """scale / length of each query: (batch * query heads, chunks * CHUNK)."""
    pairs: Pointer
    """P: (batch * query heads, chunks, CHUNK, CHUNK)."""
    d_final: Pointer
    d_states: Pointer
    """Gradient of the state after each chunk, like `states`."""
    d_errors: Pointer
    """Gradient of X, which is that of V: (batch, heads, length, value_dim)."""
    d_initial: Pointer


@triton.jit
def delta_walk_back(pointers, strides, sizes, TILES: tl.constexpr):
    """Walk back through one sequence, for one tile of value columns."""
    row, first = tl.program_id(0), tl.program_id(1) * TILES.BLOCK_V
    batch, head = row // sizes.heads, row % sizes.heads
    key_head = head * sizes.key_heads // sizes.heads
    d_state = tl.zeros([TILES.BLOCK_K, TILES.BLOCK_V], tl.float32)
    if TILES.HAS_STATE:
        d_state = _load_state(pointers.d_final, row, first, TILES)  # [BLOCK_K, BLOCK_V]
    offsets, matrix = state_offsets(first, TILES), matrix_offsets()
    for number in range(sizes.chunks):
        chunk = sizes.chunks - 1 - number
        start = chunk * CHUNK
        index = row.to(tl.int64) * sizes.chunks + chunk
        valid = start + tl.arange(0, CHUNK) < sizes.length
        base = chunk_gates(pointers.gates, row, chunk, sizes)
        k = load_rows(pointers.k, strides.k, batch, key_head, start, valid, TILES.KEY_DIM, TILES.BLOCK_K,
                      TILES.KEY_DIM == TILES.BLOCK_K).to(TILES.DTYPE)  # [CHUNK, BLOCK_K]  # fmt: skip
        inverse = tl.load(pointers.inverse + index * (CHUNK * CHUNK) + matrix)  # [CHUNK, CHUNK]
        length, beta, read = load_gate(base, INVERSE), load_gate(base, BETA), load_gate(base, READ)
        write = load_gate(base, WRITE) * length
        keep = tl.load(base + KEEP * CHUNK)  # scalar
        rounded = d_state.to(TILES.DTYPE)
        tl.store(pointers.d_states + index * (TILES.BLOCK_K * TILES.PADDED_V) + offsets, rounded)  # [BLOCK_K, BLOCK_V]
        # [CHUNK, BLOCK_K] x [BLOCK_K, BLOCK_V]
        d_updates = tl.dot(k, rounded, input_precision=TILES.PRECISION) * write[:, None]
        d_state *= keep
        for member in range(TILES.GROUP):
            query_row = row * TILES.GROUP + member
            query_index = query_row.to(tl.int64) * sizes.chunks + chunk
            q = load_rows(pointers.q, strides.q, batch, head * TILES.GROUP + member, start, valid, TILES.KEY_DIM,
                          TILES.BLOCK_K, TILES.KEY_DIM == TILES.BLOCK_K)  # [CHUNK, BLOCK_K]  # fmt: skip
            d_out = load_rows(pointers.d_out + first, strides.out, batch, head * TILES.GROUP + member, start, valid,
                              TILES.VALUE_DIM - first, TILES.BLOCK_V,
                              TILES.VALUE_DIM == TILES.PADDED_V)  # [CHUNK, BLOCK_V]  # fmt: skip
            pairs = tl.load(pointers.pairs + query_index * (CHUNK * CHUNK) + matrix)  # [CHUNK, CHUNK]
            asks = tl.load(pointers.asks + query_index * CHUNK + tl.arange(0, CHUNK)) * read  # [CHUNK]
            # [CHUNK, CHUNK] x [CHUNK, BLOCK_V]
            d_updates = tl.dot(tl.trans(pairs), d_out.to(TILES.DTYPE), d_updates, input_precision=TILES.PRECISION)
            # [BLOCK_K, CHUNK] x [CHUNK, BLOCK_V]
            d_state = tl.dot(
                tl.trans(q.to(TILES.DTYPE)), (d_out.to(tl.float32) * asks[:, None]).to(TILES.DTYPE), d_state,
                input_precision=TILES.PRECISION,
            )  # fmt: skip
        # [CHUNK, CHUNK] x [CHUNK, BLOCK_V]
        d_errors = tl.dot(tl.trans(inverse), d_updates.to(TILES.DTYPE), input_precision=TILES.PRECISION)
        d_errors *= beta[:, None]
        store_rows(pointers.d_errors + first, d_errors, strides.d_v, batch, head, start, valid, TILES.VALUE_DIM - first,
                   TILES.BLOCK_V, TILES.VALUE_DIM == TILES.PADDED_V)  # [CHUNK, BLOCK_V]  # fmt: skip
        # [BLOCK_K, CHUNK] x [CHUNK, BLOCK_V]
        d_state = tl.dot(
            tl.trans(k), (d_errors * (-read * length)[:, None]).to(TILES.DTYPE), d_state,
            input_precision=TILES.PRECISION,
        )  # fmt: skip
    _store_state(pointers.d_initial, d_state, row, first, TILES)


@triton.jit
def _load_state(pointer, row, first, TILES: tl.constexpr):
    """Load a tile of a (rows, KEY_DIM, VALUE_DIM) state."""
    keys, columns = tl.arange(0, TILES.BLOCK_K), first + tl.arange(0, TILES.BLOCK_V)
    inside = (keys < TILES.KEY_DIM)[:, None] & (columns < TILES.VALUE_DIM)[None, :]
    at = pointer + row.to(tl.int64) * (TILES.KEY_DIM * TILES.VALUE_DIM)
    at += keys[:, None] * TILES.VALUE_DIM + columns[None, :]
    return tl.load(at, mask=inside, other=0.0)  # [BLOCK_K, BLOCK_V]


@triton.jit
def _store_state(pointer, state, row, first, TILES: tl.constexpr):
    """Store a tile at the addresses of `_load_state`."""
    keys, columns = tl.arange(0, TILES.BLOCK_K), first + tl.arange(0, TILES.BLOCK_V)
    inside = (keys < TILES.KEY_DIM)[:, None] & (columns < TILES.VALUE_DIM)[None, :]
    at = pointer + row.to(tl.int64) * (TILES.KEY_DIM * TILES.VALUE_DIM)
    at += keys[:, None] * TILES.VALUE_DIM + columns[None, :]
    tl.store(at, state, mask=inside)  # [BLOCK_K, BLOCK_V]
