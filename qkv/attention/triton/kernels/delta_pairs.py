"""Kernel of what a chunk needs before its state is known: gates, lengths of keys and queries, N and P."""

from typing import NamedTuple

import triton
import triton.language as tl

from qkv.attention.internal import delta_rule, gates
from qkv.attention.triton.kernels.common import Pointer, load_rows, program_and_row
from qkv.attention.triton.kernels.delta_common import (
    BETA,
    CHUNK,
    DOCUMENT,
    FACTORS,
    HIGH,
    INVERSE,
    KEEP,
    LOW,
    SYSTEM,
    chunk_gates,
    inverse_length,
    matrix_offsets,
    pair_factors,
)

EPS = tl.constexpr(delta_rule.EPS)
CLOSED = tl.constexpr(gates.CLOSED)
LEAST_BETA = tl.constexpr(1e-12)
"""A smaller beta counts as this one: its gradient is a quotient, U / beta."""


class PairsPointers(NamedTuple):
    """Tensors of `delta_pairs`."""

    q: Pointer
    k: Pointer
    decay: Pointer
    beta: Pointer
    starts: Pointer
    gates: Pointer
    system: Pointer
    """N, float32, its blocks of 16 tokens up to the diagonal: (rows, chunks, 10, 16, 16)."""
    factors: Pointer
    """Factors of each token: (rows * group, chunks, CHUNK, FACTORS); see `split_factors`."""
    pairs: Pointer
    """P: (rows * group, chunks, CHUNK, CHUNK)."""


@triton.jit
def delta_pairs(pointers, strides, sizes, scale, TILES: tl.constexpr):
    """Compute N, P and the gates of one chunk."""
    chunk, row = program_and_row(sizes.rows)
    batch, head = row // sizes.heads, row % sizes.heads
    start, tokens = chunk * CHUNK, tl.arange(0, CHUNK)
    valid = start + tokens < sizes.length
    k = load_rows(pointers.k, strides.k, batch, head * sizes.key_heads // sizes.heads, start, valid, TILES.KEY_DIM,
                  TILES.BLOCK_K, TILES.KEY_DIM == TILES.BLOCK_K).to(TILES.DTYPE)  # [CHUNK, BLOCK_K]  # fmt: skip
    high, low, document = _sum_rates(batch, head, start, pointers, strides, sizes, TILES)
    beta = tl.full([CHUNK], 1.0, tl.float32)
    if TILES.HAS_BETA:
        at = _token_address(pointers.beta, strides.beta, batch, head, start)
        beta = tl.load(at, mask=valid, other=0.0).to(tl.float32)  # [CHUNK]
        beta = tl.where(tl.abs(beta) < LEAST_BETA, LEAST_BETA, beta)
    # [CHUNK, BLOCK_K] x [BLOCK_K, CHUNK]
    system = tl.dot(k, tl.trans(k), input_precision=TILES.PRECISION)
    inverse = inverse_length(_diagonal(system), EPS)  # [CHUNK]
    read, write = _store_gates(high, low, document, inverse, beta, row, chunk, pointers, sizes, TILES)
    faded = pair_factors(high, low, document, TILES) * inverse[None, :]  # [CHUNK, CHUNK]
    system *= faded * (beta * inverse)[:, None]
    system = tl.where(tokens[:, None] > tokens[None, :], system, 0.0)
    index = row.to(tl.int64) * sizes.chunks + chunk
    i, j = tokens[:, None] // 16, tokens[None, :] // 16
    blocks = pointers.system + index * SYSTEM + (i * (i + 1) // 2 + j) * 256
    tl.store(blocks + tokens[:, None] % 16 * 16 + tokens[None, :] % 16, system, mask=i >= j)  # [CHUNK, CHUNK]
    for member in range(TILES.GROUP):
        q = load_rows(pointers.q, strides.q, batch, head * TILES.GROUP + member, start, valid, TILES.KEY_DIM,
                      TILES.BLOCK_K, TILES.KEY_DIM == TILES.BLOCK_K).to(TILES.DTYPE)  # [CHUNK, BLOCK_K]  # fmt: skip
        # [CHUNK, BLOCK_K] x [BLOCK_K, CHUNK]
        asks = inverse_length(_diagonal(tl.dot(q, tl.trans(q), input_precision=TILES.PRECISION)), EPS) * scale
        # [CHUNK, BLOCK_K] x [BLOCK_K, CHUNK]
        pairs = tl.dot(q, tl.trans(k), input_precision=TILES.PRECISION) * faded * asks[:, None]
        query_index = (row.to(tl.int64) * TILES.GROUP + member) * sizes.chunks + chunk
        out = pointers.pairs + query_index * (CHUNK * CHUNK)
        tl.store(out + matrix_offsets(), pairs.to(TILES.DTYPE))  # [CHUNK, CHUNK]
        at = pointers.factors + query_index * (CHUNK * FACTORS) + tokens * FACTORS
        tl.store(at, asks)  # [CHUNK]
        tl.store(at + 1, asks * read)  # [CHUNK]
        tl.store(at + 2, -read * inverse)  # [CHUNK]
        tl.store(at + 3, write * inverse)  # [CHUNK]


@triton.jit
def _token_address(pointer, strides, batch, head, start):
    """Return the addresses of the tokens of a chunk in a (batch, heads, time) tensor."""
    first = pointer + batch.to(tl.int64) * strides.batch + head.to(tl.int64) * strides.head
    return first + tl.cast(start, tl.int64) * strides.token + tl.arange(0, CHUNK) * strides.token


@triton.jit
def _diagonal(matrix):
    tokens = tl.arange(0, CHUNK)
    return tl.sum(tl.where(tokens[:, None] == tokens[None, :], matrix, 0.0), 1)  # [CHUNK]


@triton.jit
def _sum_rates(batch, head, start, pointers, strides, sizes, TILES: tl.constexpr):
    """Return the sums d as two float32 numbers each, and the starts of documents up to each token."""
    zero, tokens = tl.zeros([CHUNK], tl.float32), start + tl.arange(0, CHUNK)
    high, low, document = zero, zero, zero
    if TILES.HAS_DECAY:
        at = _token_address(pointers.decay, strides.decay, batch, head, start)
        rates = tl.load(at, mask=tokens < sizes.length, other=0.0)  # [CHUNK]
        sums = tl.cumsum(tl.minimum(rates.to(tl.float64), CLOSED), 0)
        high = sums.to(tl.float32)
        low = (sums - high.to(tl.float64)).to(tl.float32)
    if TILES.HAS_STARTS:
        at = pointers.starts + batch.to(tl.int64) * sizes.length + tokens
        begins = tl.load(at, mask=tokens < sizes.length, other=0) != 0  # [CHUNK]
        document = tl.cumsum(begins.to(tl.float32), 0)
    return high, low, document


@triton.jit
def _store_gates(high, low, document, inverse, beta, row, chunk, pointers, sizes, TILES: tl.constexpr):
    """Store the gates; return exp(-d) and exp(d - d_C)."""
    tokens = tl.arange(0, CHUNK)  # [CHUNK]
    read, write = tl.full([CHUNK], 1.0, tl.float32), tl.full([CHUNK], 1.0, tl.float32)
    keep = tl.full([CHUNK], 1.0, tl.float32)
    if TILES.HAS_DECAY:
        last_high, last_low = tl.max(high, 0), tl.sum(tl.where(tokens == CHUNK - 1, low, 0.0), 0)
        read, keep = tl.exp(-high), keep * tl.exp(-last_high)
        write = tl.exp(tl.minimum((high - last_high) + (low - last_low), 0.0))
    if TILES.HAS_STARTS:
        last = tl.max(document, 0)
        read, write = tl.where(document == 0.0, read, 0.0), tl.where(document == last, write, 0.0)
        keep = tl.where(last == 0.0, keep, 0.0)
    base = chunk_gates(pointers.gates, row, chunk, sizes) + tokens
    tl.store(base + HIGH * CHUNK, high)  # [CHUNK]
    tl.store(base + LOW * CHUNK, low)  # [CHUNK]
    tl.store(base + DOCUMENT * CHUNK, document)  # [CHUNK]
    tl.store(base + INVERSE * CHUNK, inverse)  # [CHUNK]
    tl.store(base + BETA * CHUNK, beta)  # [CHUNK]
    tl.store(base + KEEP * CHUNK, keep)  # [CHUNK]
    return read, write
