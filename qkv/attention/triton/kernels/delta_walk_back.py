"""Kernel of the walk back through a sequence: gradients of the states, and of X, which is that of V."""

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
)


class WalkBackPointers(NamedTuple):
    """Tensors of `delta_walk_back`; see `delta_walk` for those that the forward has left."""

    q: Pointer
    k: Pointer
    d_out: Pointer
    gates: Pointer
    inverse: Pointer
    factors: Pointer
    pairs: Pointer
    d_final: Pointer
    d_states: Pointer
    """Gradient of the state after each chunk, like `states`."""
    d_errors: Pointer
    """Gradient of X: (batch, heads, length, value_dim)."""
    d_initial: Pointer


@triton.jit
def delta_walk_back(pointers, strides, sizes, TILES: tl.constexpr):
    """Walk back through one sequence, for one tile of value columns."""
    row, first = tl.program_id(0), tl.program_id(1) * TILES.BLOCK_V
    batch, head = row // sizes.heads, row % sizes.heads
    key_head = head * sizes.key_heads // sizes.heads
    d_state = tl.zeros([TILES.BLOCK_V, TILES.BLOCK_K], tl.float32)
    if TILES.HAS_STATE:
        d_state = load_state(pointers.d_final, row, first, TILES)  # [BLOCK_V, BLOCK_K]
    next_factors = load_factors(pointers.factors, row, sizes.chunks - 1, sizes, TILES)
    next_keep = load_keep(pointers.gates, row, sizes.chunks - 1, sizes)
    for number in range(sizes.chunks):
        chunk = sizes.chunks - 1 - number
        factors, keep, following = next_factors, next_keep, tl.maximum(chunk - 1, 0)
        next_factors = load_factors(pointers.factors, row, following, sizes, TILES)
        next_keep = load_keep(pointers.gates, row, following, sizes)
        _, _, read, write = split_factors(factors[0])
        start = chunk * CHUNK
        index = row.to(tl.int64) * sizes.chunks + chunk
        valid = start + tl.arange(0, CHUNK) < sizes.length
        k = load_rows(pointers.k, strides.k, batch, key_head, start, valid, TILES.KEY_DIM, TILES.BLOCK_K,
                      TILES.KEY_DIM == TILES.BLOCK_K).to(TILES.DTYPE)  # [CHUNK, BLOCK_K]  # fmt: skip
        inverse = tl.load(pointers.inverse + index * (CHUNK * CHUNK) + matrix_offsets())  # [CHUNK, CHUNK]
        rounded = d_state.to(TILES.DTYPE)
        at = pointers.d_states + index * (TILES.BLOCK_K * TILES.PADDED_V) + state_offsets(first, TILES)
        tl.store(at, rounded)  # [BLOCK_V, BLOCK_K]
        # [BLOCK_V, BLOCK_K] x [BLOCK_K, CHUNK]
        d_updates = tl.dot(rounded, tl.trans(k), input_precision=TILES.PRECISION) * write[None, :]
        d_state *= keep
        for member in tl.static_range(TILES.GROUP):
            d_updates, d_state = _add_query_head(
                d_updates, d_state, factors[member], row, member, chunk, first, pointers, strides, sizes, TILES
            )
        # [BLOCK_V, CHUNK] x [CHUNK, CHUNK]
        d_errors = tl.dot(d_updates.to(TILES.DTYPE), inverse, input_precision=TILES.PRECISION)
        store_rows(pointers.d_errors + first, tl.trans(d_errors), strides.d_v, batch, head, start, valid,
                   TILES.VALUE_DIM - first, TILES.BLOCK_V,
                   TILES.VALUE_DIM == TILES.PADDED_V)  # [CHUNK, BLOCK_V]  # fmt: skip
        d_read = (d_errors * read[None, :]).to(TILES.DTYPE)
        # [BLOCK_V, CHUNK] x [CHUNK, BLOCK_K]
        d_state = tl.dot(d_read, k, d_state, input_precision=TILES.PRECISION)
    store_state(pointers.d_initial, d_state, row, first, TILES)


@triton.jit
def _add_query_head(
    d_updates, d_state, factors, row, member, chunk, first, pointers, strides, sizes, TILES: tl.constexpr
):  # fmt: skip
    """Add what the outputs of one query head pass to U and to the state before the chunk."""
    batch, query_head, start = row // sizes.heads, row % sizes.heads * TILES.GROUP + member, chunk * CHUNK
    query_index = (row.to(tl.int64) * TILES.GROUP + member) * sizes.chunks + chunk
    valid = start + tl.arange(0, CHUNK) < sizes.length
    q = load_rows(pointers.q, strides.q, batch, query_head, start, valid, TILES.KEY_DIM, TILES.BLOCK_K,
                  TILES.KEY_DIM == TILES.BLOCK_K).to(TILES.DTYPE)  # [CHUNK, BLOCK_K]  # fmt: skip
    d_out = load_rows(pointers.d_out + first, strides.out, batch, query_head, start, valid, TILES.VALUE_DIM - first,
                      TILES.BLOCK_V, TILES.VALUE_DIM == TILES.PADDED_V)  # [CHUNK, BLOCK_V]  # fmt: skip
    pairs = tl.load(pointers.pairs + query_index * (CHUNK * CHUNK) + matrix_offsets())  # [CHUNK, CHUNK]
    d_out = tl.trans(d_out)  # [BLOCK_V, CHUNK]
    # [BLOCK_V, CHUNK] x [CHUNK, CHUNK]
    d_updates = tl.dot(d_out.to(TILES.DTYPE), pairs, d_updates, input_precision=TILES.PRECISION)
    _, asks, _, _ = split_factors(factors)
    d_read = (d_out.to(tl.float32) * asks[None, :]).to(TILES.DTYPE)
    # [BLOCK_V, CHUNK] x [CHUNK, BLOCK_K]
    d_state = tl.dot(d_read, q, d_state, input_precision=TILES.PRECISION)
    return d_updates, d_state
