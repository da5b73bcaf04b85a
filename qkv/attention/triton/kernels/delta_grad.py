"""Kernel of the gradients of q, k, decay and beta, all chunks in parallel.

    G = tril(dO U') f asks_i inv_j         H = -strict_tril(dX U') f inv_i inv_j
    g_q = G k + asks exp(-d) dO S'         gradient of unit q, times inv(q)
    g_a = H k - inv exp(-d) dX S'          gradient of the unit key that reads, times inv(k)
    g_w = H' k + G' q + inv exp(d - d_C) U dS'      gradient of the unit key that is written, times inv(k)

The sum d_t stands as -d_t beside all that token t reads and as +d_t beside what it writes, so the gradient of the rates
follows from products of vectors and their gradients.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from qkv.attention.triton.kernels.common import Pointer, load_rows, program_and_row, store_rows
from qkv.attention.triton.kernels.delta_common import (
    BETA,
    CHUNK,
    INVERSE,
    KEEP,
    READ,
    WRITE,
    chunk_gates,
    load_gate,
    pair_factors,
)


class DeltaGradPointers(NamedTuple):
    """Tensors of `delta_grad`; see `delta_walk_back` for their shapes."""

    q: Pointer
    k: Pointer
    d_out: Pointer
    gates: Pointer
    asks: Pointer
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
    """Compute the gradients of one chunk."""
    chunk, row = program_and_row(sizes.rows)
    batch, head = row // sizes.heads, row % sizes.heads
    start = chunk * CHUNK
    tokens = tl.arange(0, CHUNK)  # [CHUNK]
    valid = start + tokens < sizes.length
    base = chunk_gates(pointers.gates, row, chunk, sizes)
    inverse, read = load_gate(base, INVERSE), load_gate(base, READ)
    k = load_rows(pointers.k, strides.k, batch, head * sizes.key_heads // sizes.heads, start, valid, TILES.KEY_DIM,
                  TILES.BLOCK_K, TILES.KEY_DIM == TILES.BLOCK_K).to(TILES.DTYPE)  # [CHUNK, BLOCK_K]  # fmt: skip
    factors = pair_factors(base, TILES)  # [CHUNK, CHUNK]
    d_key = tl.zeros([CHUNK, TILES.BLOCK_K], tl.float32)
    to_read, to_write = tl.zeros([CHUNK], tl.float32), tl.zeros([CHUNK], tl.float32)
    for member in range(TILES.GROUP):
        by_query, by_key, d_key = _query_part(
            d_key, k, factors, inverse, read, row, member, chunk, batch, head, start, valid, pointers, strides, sizes,
            scale, TILES,
        )  # fmt: skip
        to_read += by_query
        to_write += by_key
    products, by_read, by_write, d_beta, kept = _key_parts(
        row, chunk, batch, head, start, valid, pointers, strides, sizes, TILES
    )
    wide = k.to(tl.float32)
    by_write *= (load_gate(base, WRITE) * inverse)[:, None]
    to_end = tl.sum(wide * by_write, 1)  # [CHUNK]
    d_key += by_write
    strict = tl.where(tokens[:, None] > tokens[None, :], factors, 0.0)
    products = (-products * strict * inverse[:, None] * inverse[None, :]).to(TILES.DTYPE)
    # [CHUNK, CHUNK] x [CHUNK, BLOCK_K]
    by_read = tl.dot(products, k, by_read * (-inverse * read)[:, None], input_precision=TILES.PRECISION)
    to_read += tl.sum(wide * by_read, 1)  # [CHUNK]
    d_key += by_read
    # [CHUNK, CHUNK] x [CHUNK, BLOCK_K]
    by_pairs = tl.dot(tl.trans(products), k, input_precision=TILES.PRECISION)
    to_write += tl.sum(wide * by_pairs, 1)  # [CHUNK]
    d_key += by_pairs
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
def _key_parts(row, chunk, batch, head, start, valid, pointers, strides, sizes, TILES: tl.constexpr):
    """Return dX U', dX S', U dS', and the sums of dX U per token and of S dS."""
    index = row.to(tl.int64) * sizes.chunks + chunk
    products = tl.zeros([CHUNK, CHUNK], tl.float32)
    by_read = tl.zeros([CHUNK, TILES.BLOCK_K], tl.float32)
    by_write = tl.zeros([CHUNK, TILES.BLOCK_K], tl.float32)
    d_beta = tl.zeros([CHUNK], tl.float32)
    kept = 0.0
    for first in range(0, TILES.PADDED_V, TILES.BLOCK_V):
        updates, state = _load_chunk(pointers.updates, pointers.states, index, first, TILES)
        d_state = _load_transposed(pointers.d_states, index, first, TILES)  # [BLOCK_V, BLOCK_K]
        d_errors = load_rows(pointers.d_errors + first, strides.d_v, batch, head, start, valid, TILES.VALUE_DIM - first,
                             TILES.BLOCK_V, TILES.VALUE_DIM == TILES.PADDED_V)  # [CHUNK, BLOCK_V]  # fmt: skip
        # [CHUNK, BLOCK_V] x [BLOCK_V, CHUNK]
        products = tl.dot(d_errors, tl.trans(updates), products, input_precision=TILES.PRECISION)
        # [CHUNK, BLOCK_V] x [BLOCK_V, BLOCK_K]
        by_read = tl.dot(d_errors, state, by_read, input_precision=TILES.PRECISION)
        # [CHUNK, BLOCK_V] x [BLOCK_V, BLOCK_K]
        by_write = tl.dot(updates, d_state, by_write, input_precision=TILES.PRECISION)
        if TILES.HAS_BETA:
            d_beta += tl.sum(d_errors.to(tl.float32) * updates.to(tl.float32), 1)
        if TILES.HAS_DECAY:
            kept += tl.sum(tl.sum(state.to(tl.float32) * d_state.to(tl.float32), 1), 0)
    return products, by_read, by_write, d_beta, kept


@triton.jit
def _query_part(
    d_key, k, factors, inverse, read, row, member, chunk, batch, head, start, valid, pointers, strides, sizes, scale,
    TILES: tl.constexpr,
):  # fmt: skip
    """Store the gradient of one query head; return q.g_q and k.(G' q) of each token, and `d_key` plus G' q.

    The products are without the diagonal of G, which has no gate: beside fast gates it would be a large difference of
    equal sums.
    """
    index, query_head = row.to(tl.int64) * sizes.chunks + chunk, head * TILES.GROUP + member
    query_index = (row * TILES.GROUP + member).to(tl.int64) * sizes.chunks + chunk
    q = load_rows(pointers.q, strides.q, batch, query_head, start, valid, TILES.KEY_DIM, TILES.BLOCK_K,
                  TILES.KEY_DIM == TILES.BLOCK_K).to(TILES.DTYPE)  # [CHUNK, BLOCK_K]  # fmt: skip
    asks = tl.load(pointers.asks + query_index * CHUNK + tl.arange(0, CHUNK))  # [CHUNK]
    products = tl.zeros([CHUNK, CHUNK], tl.float32)
    d_query = tl.zeros([CHUNK, TILES.BLOCK_K], tl.float32)
    for first in range(0, TILES.PADDED_V, TILES.BLOCK_V):
        updates, state = _load_chunk(pointers.updates, pointers.states, index, first, TILES)
        d_out = load_rows(pointers.d_out + first, strides.out, batch, query_head, start, valid,
                          TILES.VALUE_DIM - first, TILES.BLOCK_V,
                          TILES.VALUE_DIM == TILES.PADDED_V).to(TILES.DTYPE)  # [CHUNK, BLOCK_V]  # fmt: skip
        # [CHUNK, BLOCK_V] x [BLOCK_V, CHUNK]
        products = tl.dot(d_out, tl.trans(updates), products, input_precision=TILES.PRECISION)
        # [CHUNK, BLOCK_V] x [BLOCK_V, BLOCK_K]
        d_query = tl.dot(d_out, state, d_query, input_precision=TILES.PRECISION)
    products *= factors * asks[:, None] * inverse[None, :]
    tokens = tl.arange(0, CHUNK)  # [CHUNK]
    diagonal = tl.sum(tl.where(tokens[:, None] == tokens[None, :], products, 0.0), 1)  # [CHUNK]
    products = tl.where(tokens[:, None] > tokens[None, :], products, 0.0).to(TILES.DTYPE)
    # [CHUNK, CHUNK] x [CHUNK, BLOCK_K]
    d_query = tl.dot(products, k, d_query * (asks * read)[:, None], input_precision=TILES.PRECISION)
    # [CHUNK, CHUNK] x [CHUNK, BLOCK_K]
    by_pairs = tl.dot(tl.trans(products), q, input_precision=TILES.PRECISION)
    wide, wide_k = q.to(tl.float32), k.to(tl.float32)
    to_query, to_key = tl.sum(wide * d_query, 1), tl.sum(wide_k * by_pairs, 1)  # [CHUNK]
    d_key += by_pairs + wide * diagonal[:, None]
    d_query += wide_k * diagonal[:, None]
    along = tl.sum(wide * d_query, 1)  # [CHUNK]
    d_query -= wide * (along * (asks / scale) * (asks / scale))[:, None]
    store_rows(pointers.d_q, d_query, strides.d_q, batch, query_head, start, valid, TILES.KEY_DIM, TILES.BLOCK_K,
               TILES.KEY_DIM == TILES.BLOCK_K)  # [CHUNK, BLOCK_K]  # fmt: skip
    return to_query, to_key, d_key


@triton.jit
def _load_chunk(updates, states, index, first, TILES: tl.constexpr):
    """Load some value columns of U, and of S transposed."""
    columns = first + tl.arange(0, TILES.BLOCK_V)  # [BLOCK_V]
    at = index * (CHUNK * TILES.PADDED_V) + tl.arange(0, CHUNK)[:, None] * TILES.PADDED_V + columns[None, :]
    return tl.load(updates + at), _load_transposed(states, index, first, TILES)  # [CHUNK, BLOCK_V]


@triton.jit
def _load_transposed(states, index, first, TILES: tl.constexpr):
    """Load some value columns of a state, transposed."""
    columns = first + tl.arange(0, TILES.BLOCK_V)  # [BLOCK_V]
    at = index * (TILES.BLOCK_K * TILES.PADDED_V)
    at += tl.arange(0, TILES.BLOCK_K)[None, :] * TILES.PADDED_V + columns[:, None]
    return tl.load(states + at)  # [BLOCK_V, BLOCK_K]
