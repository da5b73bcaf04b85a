"""Kernel of the gradients of q, k, decay and beta, all chunks in parallel.

    G = tril(dO U') f asks_i inv_j         H = -strict_tril(dX U') f inv_i inv_j
    g_q = G k + asks exp(-d) dO S'         gradient of unit q, times inv(q)
    g_a = H k - inv exp(-d) dX S'          gradient of the unit key that reads, times inv(k)
    g_w = H' k + G' q + inv exp(d - d_C) U dS'      gradient of the unit key that is written, times inv(k)

The sum d_t stands as -d_t beside all that token t reads and as +d_t beside what it writes, so the gradient of the rates
follows from products of vectors and their gradients. Pairs of a token with itself have no gate and are left out: beside
fast gates they would be a large difference of equal sums.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from qkv.attention.triton.kernels.common import Pointer, load_rows, program_and_row, store_rows
from qkv.attention.triton.kernels.delta_common import (
    BETA,
    CHUNK,
    DOCUMENT,
    FACTORS,
    HIGH,
    INVERSE,
    KEEP,
    LOW,
    chunk_gates,
    load_gate,
    matrix_offsets,
    pair_factors,
    state_offsets,
    token_offsets,
)


class DeltaGradPointers(NamedTuple):
    """Tensors of `delta_grad`; see `delta_walk` and `delta_walk_back` for their shapes."""

    q: Pointer
    k: Pointer
    d_out: Pointer
    gates: Pointer
    factors: Pointer
    pairs: Pointer
    states: Pointer
    d_states: Pointer
    updates: Pointer
    d_errors: Pointer
    starts: Pointer
    d_q: Pointer
    d_k: Pointer
    """(batch, heads, length, key_dim)"""
    d_decay: Pointer
    """(batch, heads, length)"""
    d_beta: Pointer


@triton.jit
def delta_grad(pointers, strides, sizes, scale, TILES: tl.constexpr):
    """Compute the gradients of one chunk: first what depends on queries, so that few sums are held at a time."""
    chunk, row = program_and_row(sizes.rows)
    batch, head = row // sizes.heads, row % sizes.heads
    start, tokens = chunk * CHUNK, tl.arange(0, CHUNK)
    valid = start + tokens < sizes.length
    base = chunk_gates(pointers.gates, row, chunk, sizes)
    k = load_rows(pointers.k, strides.k, batch, head * sizes.key_heads // sizes.heads, start, valid, TILES.KEY_DIM,
                  TILES.BLOCK_K, TILES.KEY_DIM == TILES.BLOCK_K).to(TILES.DTYPE)  # [CHUNK, BLOCK_K]  # fmt: skip
    inverse = load_gate(base, INVERSE)
    d_key = tl.zeros([CHUNK, TILES.BLOCK_K], tl.float32)
    to_read, to_write = tl.zeros([CHUNK], tl.float32), tl.zeros([CHUNK], tl.float32)
    for member in range(TILES.GROUP):
        d_key, to_read, to_write = _query_part(
            d_key, to_read, to_write, k, base, row, member, chunk, pointers, strides, sizes, scale, TILES
        )
    wide, found = k.to(tl.float32), pointers.d_errors
    at = (
        pointers.factors
        + (row.to(tl.int64) * TILES.GROUP * sizes.chunks + chunk) * (CHUNK * FACTORS)
        + tokens * FACTORS
    )
    key_read, key_write = tl.load(at + 2), tl.load(at + 3)  # [CHUNK]
    by_read = _times_states(found, strides.d_v, pointers.states, 1, row, 0, chunk, sizes, TILES)
    by_read *= key_read[:, None]
    to_read += tl.sum(wide * by_read, 1)  # [CHUNK]
    d_key += by_read
    by_write, kept = _updates_times_states(row, chunk, pointers, sizes, TILES)
    by_write *= key_write[:, None]
    to_end = tl.sum(wide * by_write, 1)  # [CHUNK]
    d_key += by_write
    products = _times_updates(found, strides.d_v, 1, row, 0, chunk, pointers, sizes, TILES)  # [CHUNK, CHUNK]
    d_beta = tl.sum(tl.where(tokens[:, None] == tokens[None, :], products, 0.0), 1)  # [CHUNK]
    products *= _load_pair_factors(base, TILES) * -inverse[:, None] * inverse[None, :]
    products = tl.where(tokens[:, None] > tokens[None, :], products, 0.0)  # H
    # [CHUNK, BLOCK_K] x [BLOCK_K, CHUNK]
    by_gate = tl.dot(k, tl.trans(k), input_precision=TILES.PRECISION) * products
    to_read += tl.sum(by_gate, 1)  # [CHUNK]
    to_write += tl.sum(by_gate, 0)  # [CHUNK]
    rounded = products.to(TILES.DTYPE)
    # [CHUNK, CHUNK] x [CHUNK, BLOCK_K]
    d_key = tl.dot(rounded, k, d_key, input_precision=TILES.PRECISION)
    # [CHUNK, CHUNK] x [CHUNK, BLOCK_K]
    d_key = tl.dot(tl.trans(rounded), k, d_key, input_precision=TILES.PRECISION)
    d_key -= wide * (tl.sum(wide * d_key, 1) * inverse * inverse)[:, None]
    store_rows(pointers.d_k, d_key, strides.d_k, batch, head, start, valid, TILES.KEY_DIM, TILES.BLOCK_K,
               TILES.KEY_DIM == TILES.BLOCK_K)  # [CHUNK, BLOCK_K]  # fmt: skip
    _store_rates(d_beta, to_read, to_write, to_end, kept, base, row, batch, start, valid, pointers, sizes, TILES)


@triton.jit
def _store_rates(
    d_beta, to_read, to_write, to_end, kept, base, row, batch, start, valid, pointers, sizes, TILES: tl.constexpr
):
    """Store the gradients of beta and decay."""
    tokens = tl.arange(0, CHUNK)  # [CHUNK]
    flat = row.to(tl.int64) * sizes.length + start + tokens
    if TILES.HAS_BETA:
        beta = load_gate(base, BETA)
        tl.store(pointers.d_beta + flat, d_beta / beta / beta, mask=valid)  # [CHUNK]
    if TILES.HAS_DECAY:
        later = tl.cumsum(to_write - to_read, 0, reverse=True)  # from each token to the end
        earlier = tl.cumsum(to_end, 0) - to_end
        d_decay = later - earlier - kept * tl.load(base + KEEP * CHUNK)  # [CHUNK]
        if TILES.HAS_STARTS:  # nothing before a start is seen, so its rate has no effect
            at = pointers.starts + batch.to(tl.int64) * sizes.length + start + tokens
            d_decay = tl.where(tl.load(at, mask=valid, other=0) != 0, 0.0, d_decay)  # [CHUNK]
        tl.store(pointers.d_decay + flat, d_decay, mask=valid)  # [CHUNK]


@triton.jit
def _load_pair_factors(base, TILES: tl.constexpr):
    return pair_factors(load_gate(base, HIGH), load_gate(base, LOW), load_gate(base, DOCUMENT), TILES)


@triton.jit
def _load_values(pointer, strides, heads, row, member, first, chunk, sizes, TILES: tl.constexpr):
    """Load some columns of dX or dO."""
    start = chunk * CHUNK
    valid = start + tl.arange(0, CHUNK) < sizes.length
    head = row % sizes.heads * heads + member
    return load_rows(pointer + first, strides, row // sizes.heads, head, start, valid, TILES.VALUE_DIM - first,
                     TILES.BLOCK_V,
                     TILES.VALUE_DIM == TILES.PADDED_V).to(TILES.DTYPE)  # [CHUNK, BLOCK_V]  # fmt: skip


@triton.jit
def _load_updates(row, first, chunk, pointers, sizes, TILES: tl.constexpr):
    """Load some columns of U."""
    index = row.to(tl.int64) * sizes.chunks + chunk
    at = pointers.updates + index * (CHUNK * TILES.PADDED_V)
    return tl.load(at + token_offsets(first, TILES))  # [CHUNK, BLOCK_V]


@triton.jit
def _load_states(states, row, first, chunk, sizes, TILES: tl.constexpr):
    """Load some columns of S or dS, [BLOCK_V, BLOCK_K]."""
    index = row.to(tl.int64) * sizes.chunks + chunk
    at = states + index * (TILES.BLOCK_K * TILES.PADDED_V)
    return tl.load(at + state_offsets(first, TILES))  # [BLOCK_V, BLOCK_K]


@triton.jit
def _times_updates(pointer, strides, heads, row, member, chunk, pointers, sizes, TILES: tl.constexpr):
    """Return dX U' or dO U'."""
    total = tl.zeros([CHUNK, CHUNK], tl.float32)
    for first in range(0, TILES.PADDED_V, TILES.BLOCK_V):
        values = _load_values(pointer, strides, heads, row, member, first, chunk, sizes, TILES)
        updates = _load_updates(row, first, chunk, pointers, sizes, TILES)
        # [CHUNK, BLOCK_V] x [BLOCK_V, CHUNK]
        total = tl.dot(values, tl.trans(updates), total, input_precision=TILES.PRECISION)
    return total


@triton.jit
def _times_states(pointer, strides, states, heads, row, member, chunk, sizes, TILES: tl.constexpr):
    """Return dX S' or dO S'."""
    total = tl.zeros([CHUNK, TILES.BLOCK_K], tl.float32)
    for first in range(0, TILES.PADDED_V, TILES.BLOCK_V):
        values = _load_values(pointer, strides, heads, row, member, first, chunk, sizes, TILES)
        # [CHUNK, BLOCK_V] x [BLOCK_V, BLOCK_K]
        state = _load_states(states, row, first, chunk, sizes, TILES)
        total = tl.dot(values, state, total, input_precision=TILES.PRECISION)
    return total


@triton.jit
def _updates_times_states(row, chunk, pointers, sizes, TILES: tl.constexpr):
    """Return U dS' and the sum of S dS."""
    total, kept = tl.zeros([CHUNK, TILES.BLOCK_K], tl.float32), 0.0
    for first in range(0, TILES.PADDED_V, TILES.BLOCK_V):
        updates = _load_updates(row, first, chunk, pointers, sizes, TILES)
        d_state = _load_states(pointers.d_states, row, first, chunk, sizes, TILES)
        # [CHUNK, BLOCK_V] x [BLOCK_V, BLOCK_K]
        total = tl.dot(updates, d_state, total, input_precision=TILES.PRECISION)
        if TILES.HAS_DECAY:
            state = _load_states(pointers.states, row, first, chunk, sizes, TILES)
            kept += tl.sum(tl.sum(state.to(tl.float32) * d_state.to(tl.float32), 1), 0)
    return total, kept


@triton.jit
def _query_part(
    d_key, to_read, to_write, k, base, row, member, chunk, pointers, strides, sizes, scale, TILES: tl.constexpr
):  # fmt: skip
    """Store the gradient of one query head; add G' q, and what reads and writes pass to the sums d."""
    batch, query_head = row // sizes.heads, row % sizes.heads * TILES.GROUP + member
    query_index = (row.to(tl.int64) * TILES.GROUP + member) * sizes.chunks + chunk
    start, tokens = chunk * CHUNK, tl.arange(0, CHUNK)
    valid = start + tokens < sizes.length
    q = load_rows(pointers.q, strides.q, batch, query_head, start, valid, TILES.KEY_DIM, TILES.BLOCK_K,
                  TILES.KEY_DIM == TILES.BLOCK_K).to(TILES.DTYPE)  # [CHUNK, BLOCK_K]  # fmt: skip
    wide = q.to(tl.float32)
    products = _times_updates(pointers.d_out, strides.out, TILES.GROUP, row, member, chunk, pointers, sizes, TILES)
    at = pointers.factors + query_index * (CHUNK * FACTORS) + tokens * FACTORS
    asks = tl.load(at)  # [CHUNK]
    pairs = tl.load(pointers.pairs + query_index * (CHUNK * CHUNK) + matrix_offsets()).to(tl.float32)
    by_pairs = products * pairs  # [CHUNK, CHUNK]
    same = tokens[:, None] == tokens[None, :]
    by_gate = tl.where(same, 0.0, by_pairs)
    by_itself = tl.sum(tl.where(same, by_pairs, 0.0), 1)  # [CHUNK]
    to_query, to_key = tl.sum(by_gate, 1), tl.sum(by_gate, 0)  # [CHUNK]
    products *= _load_pair_factors(base, TILES) * asks[:, None] * load_gate(base, INVERSE)[None, :]
    rounded = products.to(TILES.DTYPE)  # G
    d_query = _times_states(pointers.d_out, strides.out, pointers.states, TILES.GROUP, row, member, chunk, sizes, TILES)
    d_query *= tl.load(at + 1)[:, None]
    to_query += tl.sum(wide * d_query, 1)  # [CHUNK]
    # [CHUNK, CHUNK] x [CHUNK, BLOCK_K]
    d_query = tl.dot(rounded, k, d_query, input_precision=TILES.PRECISION)
    d_query -= wide * ((to_query + by_itself) * (asks / scale) * (asks / scale))[:, None]
    store_rows(pointers.d_q, d_query, strides.d_q, batch, query_head, start, valid, TILES.KEY_DIM, TILES.BLOCK_K,
               TILES.KEY_DIM == TILES.BLOCK_K)  # [CHUNK, BLOCK_K]  # fmt: skip
    # [CHUNK, CHUNK] x [CHUNK, BLOCK_K]
    d_key = tl.dot(tl.trans(rounded), q, d_key, input_precision=TILES.PRECISION)
    return d_key, to_read + to_query, to_write + to_key
