"""Kernel of the outputs, all chunks in parallel: O = scale (exp(-d) Q S + P U)."""

from typing import NamedTuple

import triton
import triton.language as tl

from qkv.attention.internal import delta_rule
from qkv.attention.triton.kernels.common import Pointer, load_rows, program_and_row, store_rows
from qkv.attention.triton.kernels.delta_common import (
    CHUNK,
    INVERSE,
    READ,
    chunk_gates,
    inverse_length,
    load_gate,
    matrix_offsets,
    pair_factors,
    state_offsets,
)

EPS = tl.constexpr(delta_rule.EPS)


class DeltaOutputPointers(NamedTuple):
    """Tensors of `delta_output`; see `delta_walk` for their shapes."""

    q: Pointer
    k: Pointer
    gates: Pointer
    states: Pointer
    updates: Pointer
    out: Pointer
    asks: Pointer
    """None if there is no backward."""
    pairs: Pointer


@triton.jit
def delta_output(pointers, strides, sizes, scale, TILES: tl.constexpr):
    """Compute the outputs of one chunk of one query head, for one tile of value columns."""
    chunk, query_row = program_and_row(sizes.rows * TILES.GROUP)
    row, first = query_row // TILES.GROUP, tl.program_id(1) * TILES.BLOCK_V
    batch, head = row // sizes.heads, row % sizes.heads
    query_head, start = head * TILES.GROUP + query_row % TILES.GROUP, chunk * CHUNK
    index, query_index = row.to(tl.int64) * sizes.chunks + chunk, query_row.to(tl.int64) * sizes.chunks + chunk
    valid = start + tl.arange(0, CHUNK) < sizes.length
    base = chunk_gates(pointers.gates, row, chunk, sizes)
    q = load_rows(pointers.q, strides.q, batch, query_head, start, valid, TILES.KEY_DIM, TILES.BLOCK_K,
                  TILES.KEY_DIM == TILES.BLOCK_K)  # [CHUNK, BLOCK_K]  # fmt: skip
    k = load_rows(pointers.k, strides.k, batch, head * sizes.key_heads // sizes.heads, start, valid, TILES.KEY_DIM,
                  TILES.BLOCK_K, TILES.KEY_DIM == TILES.BLOCK_K).to(TILES.DTYPE)  # [CHUNK, BLOCK_K]  # fmt: skip
    wide = q.to(tl.float32)
    asks = inverse_length(tl.sum(wide * wide, 1), EPS) * scale  # [CHUNK]
    q = q.to(TILES.DTYPE)
    # [CHUNK, BLOCK_K] x [BLOCK_K, CHUNK]
    pairs = tl.dot(q, tl.trans(k), input_precision=TILES.PRECISION)
    pairs *= asks[:, None] * load_gate(base, INVERSE)[None, :]
    pairs = (pairs * pair_factors(base, TILES)).to(TILES.DTYPE)
    if pointers.pairs is not None and first == 0:
        tl.store(pointers.pairs + query_index * (CHUNK * CHUNK) + matrix_offsets(), pairs)  # [CHUNK, CHUNK]
        tl.store(pointers.asks + query_index * CHUNK + tl.arange(0, CHUNK), asks)  # [CHUNK]
    state = tl.load(
        pointers.states + index * (TILES.BLOCK_K * TILES.PADDED_V) + state_offsets(first, TILES)
    )  # [BLOCK_K, BLOCK_V]  # fmt: skip
    # [CHUNK, BLOCK_K] x [BLOCK_K, BLOCK_V]
    out = tl.dot(q, state, input_precision=TILES.PRECISION) * (asks * load_gate(base, READ))[:, None]
    columns = first + tl.arange(0, TILES.BLOCK_V)  # [BLOCK_V]
    at = index * (CHUNK * TILES.PADDED_V) + tl.arange(0, CHUNK)[:, None] * TILES.PADDED_V + columns[None, :]
    updates = tl.load(pointers.updates + at)  # [CHUNK, BLOCK_V]
    # [CHUNK, CHUNK] x [CHUNK, BLOCK_V]
    out = tl.dot(pairs, updates, out, input_precision=TILES.PRECISION)
    store_rows(pointers.out + first, out, strides.out, batch, query_head, start, valid, TILES.VALUE_DIM - first,
               TILES.BLOCK_V, TILES.VALUE_DIM == TILES.PADDED_V)  # [CHUNK, BLOCK_V]  # fmt: skip
