"""Kernel of what a chunk needs before its state is known: gates, inverse lengths of keys, and M = (I + N)^-1.

The inverse is a substitution in blocks of 16 tokens and in float32, since powers of N can be large where M is small.
One warp takes a chunk, so that no step waits for another warp.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from qkv.attention.internal import delta_rule, gates
from qkv.attention.triton.kernels.common import Pointer, program_and_row
from qkv.attention.triton.kernels.delta_common import (
    BETA,
    CHUNK,
    DOCUMENT,
    HIGH,
    INVERSE,
    KEEP,
    LOW,
    READ,
    WRITE,
    chunk_gates,
    inverse_length,
)

EPS = tl.constexpr(delta_rule.EPS)
CLOSED = tl.constexpr(gates.CLOSED)
LEAST_BETA = tl.constexpr(1e-12)
"""A smaller beta counts as this one: its gradient is a quotient, U / beta."""


class PreparePointers(NamedTuple):
    """Tensors of `delta_prepare`."""

    k: Pointer
    decay: Pointer
    beta: Pointer
    starts: Pointer
    gates: Pointer
    inverse: Pointer
    """M of each chunk."""


@triton.jit
def delta_prepare(pointers, strides, sizes, TILES: tl.constexpr):
    """Prepare one chunk; Nij and Mij are blocks, [16, 16], of block row i and block column j."""
    chunk, row = program_and_row(sizes.rows)
    batch, head = row // sizes.heads, row % sizes.heads
    start = chunk * CHUNK
    base = chunk_gates(pointers.gates, row, chunk, sizes)
    _store_rates(base, batch, head, start, pointers, strides, sizes, TILES)
    keys = pointers.k + batch.to(tl.int64) * strides.k.batch + tl.cast(start, tl.int64) * strides.k.token
    keys += (head * sizes.key_heads // sizes.heads).to(tl.int64) * strides.k.head
    zero = tl.zeros([16, 16], tl.float32)
    g00, g11, g22, g33, g10, g20, g21, g30, g31, g32 = zero, zero, zero, zero, zero, zero, zero, zero, zero, zero
    none = tl.zeros([16], tl.float32)
    s0, s1, s2, s3 = none, none, none, none
    for first in range(0, TILES.BLOCK_K, TILES.PIECE_K):
        k0, s0 = _load_piece(keys, 0, first, s0, start, strides, sizes, TILES)
        k1, s1 = _load_piece(keys, 1, first, s1, start, strides, sizes, TILES)
        k2, s2 = _load_piece(keys, 2, first, s2, start, strides, sizes, TILES)
        k3, s3 = _load_piece(keys, 3, first, s3, start, strides, sizes, TILES)
        g00, g11, g22 = _add_gram(g00, k0, k0, TILES), _add_gram(g11, k1, k1, TILES), _add_gram(g22, k2, k2, TILES)
        g33, g10, g20 = _add_gram(g33, k3, k3, TILES), _add_gram(g10, k1, k0, TILES), _add_gram(g20, k2, k0, TILES)
        g21, g30, g31 = _add_gram(g21, k2, k1, TILES), _add_gram(g30, k3, k0, TILES), _add_gram(g31, k3, k1, TILES)
        g32 = _add_gram(g32, k3, k2, TILES)
    i0, i1, i2, i3 = (
        inverse_length(s0, EPS), inverse_length(s1, EPS), inverse_length(s2, EPS), inverse_length(s3, EPS)
    )  # fmt: skip
    part = tl.arange(0, 16)  # [16]
    tl.store(base + INVERSE * CHUNK + part, i0)  # [16]
    tl.store(base + INVERSE * CHUNK + 16 + part, i1)  # [16]
    tl.store(base + INVERSE * CHUNK + 32 + part, i2)  # [16]
    tl.store(base + INVERSE * CHUNK + 48 + part, i3)  # [16]
    tl.debug_barrier()  # the gates are read again by other threads
    # blocks on the diagonal are transposed, so that a row of N is a column: factor of each row of M
    n00, n11 = _transposed_block(g00, i0, 0, base, TILES), _transposed_block(g11, i1, 1, base, TILES)
    n22, n33 = _transposed_block(g22, i2, 2, base, TILES), _transposed_block(g33, i3, 3, base, TILES)
    identity = tl.where(part[:, None] == part[None, :], 1.0, 0.0)
    m00, m11, m22, m33 = identity, identity, identity, identity
    for number in range(1, 16):
        m00, m11 = _substitute(m00, n00, number), _substitute(m11, n11, number)
        m22, m33 = _substitute(m22, n22, number), _substitute(m33, n33, number)
    n10, n21 = _block(g10, i1, i0, 1, 0, base, TILES), _block(g21, i2, i1, 2, 1, base, TILES)
    n32, n20 = _block(g32, i3, i2, 3, 2, base, TILES), _block(g20, i2, i0, 2, 0, base, TILES)
    n31, n30 = _block(g31, i3, i1, 3, 1, base, TILES), _block(g30, i3, i0, 3, 0, base, TILES)
    m10 = -_multiply(m11, _multiply(n10, m00, zero, TILES), zero, TILES)
    m21 = -_multiply(m22, _multiply(n21, m11, zero, TILES), zero, TILES)
    m32 = -_multiply(m33, _multiply(n32, m22, zero, TILES), zero, TILES)
    m20 = -_multiply(m22, _multiply(n21, m10, _multiply(n20, m00, zero, TILES), TILES), zero, TILES)
    m31 = -_multiply(m33, _multiply(n32, m21, _multiply(n31, m11, zero, TILES), TILES), zero, TILES)
    sum30 = _multiply(n32, m20, _multiply(n31, m10, _multiply(n30, m00, zero, TILES), TILES), TILES)
    m30 = -_multiply(m33, sum30, zero, TILES)
    out = pointers.inverse + (row.to(tl.int64) * sizes.chunks + chunk) * (CHUNK * CHUNK)
    _store_row(out, 0, m00, zero, zero, zero)
    _store_row(out, 1, m10, m11, zero, zero)
    _store_row(out, 2, m20, m21, m22, zero)
    _store_row(out, 3, m30, m31, m32, m33)


@triton.jit
def _store_rates(base, batch, head, start, pointers, strides, sizes, TILES: tl.constexpr):
    """Store the gates that do not depend on keys."""
    part = tl.arange(0, CHUNK)  # [CHUNK]
    tokens = start + part
    valid = tokens < sizes.length
    beta = tl.full([CHUNK], 1.0, tl.float32)
    if TILES.HAS_BETA:
        at = batch.to(tl.int64) * strides.beta.batch + head.to(tl.int64) * strides.beta.head
        at += tl.cast(start, tl.int64) * strides.beta.token
        beta = tl.load(pointers.beta + at + part * strides.beta.token, mask=valid, other=0.0).to(tl.float32)  # [CHUNK]
        beta = tl.where(tl.abs(beta) < LEAST_BETA, LEAST_BETA, beta)
    high, low, document = (tl.zeros([CHUNK], tl.float32), tl.zeros([CHUNK], tl.float32), tl.zeros([CHUNK], tl.float32))
    read, write, keep = (tl.full([CHUNK], 1.0, tl.float32), tl.full([CHUNK], 1.0, tl.float32), 1.0)
    if TILES.HAS_DECAY:
        at = batch.to(tl.int64) * strides.decay.batch + head.to(tl.int64) * strides.decay.head
        at += tl.cast(start, tl.int64) * strides.decay.token
        rates = tl.load(pointers.decay + at + part * strides.decay.token, mask=valid, other=0.0)  # [CHUNK]
        rates = tl.minimum(rates.to(tl.float64), CLOSED)
        sums, total = tl.cumsum(rates, 0), tl.sum(rates, 0)
        high = sums.to(tl.float32)
        low = (sums - high.to(tl.float64)).to(tl.float32)
        read, write = tl.exp(-high), tl.exp(tl.minimum((sums - total).to(tl.float32), 0.0))
        keep = tl.exp(-total.to(tl.float32))
    if TILES.HAS_STARTS:
        at = pointers.starts + batch.to(tl.int64) * sizes.length + tokens
        begins = (tl.load(at, mask=valid, other=0) != 0).to(tl.float32)  # [CHUNK]
        document, last = tl.cumsum(begins, 0), tl.sum(begins, 0)
        read, write = tl.where(document == 0.0, read, 0.0), tl.where(document == last, write, 0.0)
        keep = tl.where(last == 0.0, keep, 0.0)
    tl.store(base + HIGH * CHUNK + part, high)  # [CHUNK]
    tl.store(base + LOW * CHUNK + part, low)  # [CHUNK]
    tl.store(base + DOCUMENT * CHUNK + part, document)  # [CHUNK]
    tl.store(base + BETA * CHUNK + part, beta)  # [CHUNK]
    tl.store(base + READ * CHUNK + part, read)  # [CHUNK]
    tl.store(base + WRITE * CHUNK + part, write)  # [CHUNK]
    tl.store(base + KEEP * CHUNK + part, tl.zeros([CHUNK], tl.float32) + keep)  # [CHUNK]


@triton.jit
def _load_piece(keys, BLOCK: tl.constexpr, first, squares, start, strides, sizes, TILES: tl.constexpr):
    """Load some columns of 16 keys, and add to their squared lengths."""
    tokens = BLOCK * 16 + tl.arange(0, 16)  # [16]
    columns = first + tl.arange(0, TILES.PIECE_K)  # [PIECE_K]
    inside = (start + tokens < sizes.length)[:, None] & (columns < TILES.KEY_DIM)[None, :]
    at = tokens[:, None] * strides.k.token + columns[None, :]
    piece = tl.load(keys + at, mask=inside, other=0.0)  # [16, PIECE_K]
    wide = piece.to(tl.float32)
    return piece.to(TILES.DTYPE), squares + tl.sum(wide * wide, 1)


@triton.jit
def _add_gram(gram, a, b, TILES: tl.constexpr):
    return tl.dot(a, tl.trans(b), gram, input_precision=TILES.PRECISION)  # [16, PIECE_K] x [PIECE_K, 16]


@triton.jit
def _load_part(base, GATE: tl.constexpr, BLOCK: tl.constexpr):
    return tl.load(base + GATE * CHUNK + BLOCK * 16 + tl.arange(0, 16))  # [16]


@triton.jit
def _block(gram, inverse_i, inverse_j, BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr, base, TILES: tl.constexpr):
    """Return a block of N below the diagonal."""
    found = gram * (_load_part(base, BETA, BLOCK_I) * inverse_i)[:, None] * inverse_j[None, :]
    if TILES.HAS_DECAY:
        high = _load_part(base, HIGH, BLOCK_J)[None, :] - _load_part(base, HIGH, BLOCK_I)[:, None]
        low = _load_part(base, LOW, BLOCK_J)[None, :] - _load_part(base, LOW, BLOCK_I)[:, None]
        found *= tl.exp(tl.minimum(high + low, 0.0))
    if TILES.HAS_STARTS:
        same = _load_part(base, DOCUMENT, BLOCK_J)[None, :] == _load_part(base, DOCUMENT, BLOCK_I)[:, None]
        found = tl.where(same, found, 0.0)
    return found


@triton.jit
def _transposed_block(gram, inverse, BLOCK: tl.constexpr, base, TILES: tl.constexpr):
    """Return a block of N' on the diagonal."""
    part = tl.arange(0, 16)  # [16]
    found = gram * inverse[:, None] * (_load_part(base, BETA, BLOCK) * inverse)[None, :]
    if TILES.HAS_DECAY:
        high, low = _load_part(base, HIGH, BLOCK), _load_part(base, LOW, BLOCK)
        exponents = (high[:, None] - high[None, :]) + (low[:, None] - low[None, :])
        found *= tl.exp(tl.minimum(exponents, 0.0))
    if TILES.HAS_STARTS:
        document = _load_part(base, DOCUMENT, BLOCK)
        found = tl.where(document[:, None] == document[None, :], found, 0.0)
    return tl.where(part[:, None] < part[None, :], found, 0.0)


@triton.jit
def _substitute(m, n_transposed, number):
    """Compute one row of the inverse of a block from the rows above it."""
    part = tl.arange(0, 16)  # [16]
    factors = tl.sum(tl.where(part[None, :] == number, n_transposed, 0.0), 1)  # [16]
    above = tl.sum(factors[:, None] * m, 0)  # [16]
    return tl.where(part[:, None] == number, m - above[None, :], m)


@triton.jit
def _multiply(a, b, total, TILES: tl.constexpr):
    return tl.dot(a, b, total, input_precision="tf32x3")  # [16, 16] x [16, 16]


@triton.jit
def _store_row(out, BLOCK: tl.constexpr, m0, m1, m2, m3):
    """Store 16 rows of M."""
    part = tl.arange(0, 16)  # [16]
    at = out + (BLOCK * 16 + part)[:, None] * CHUNK + part[None, :]
    tl.store(at, m0.to(out.dtype.element_ty))  # [16, 16]
    tl.store(at + 16, m1.to(out.dtype.element_ty))  # [16, 16]
    tl.store(at + 32, m2.to(out.dtype.element_ty))  # [16, 16]
    tl.store(at + 48, m3.to(out.dtype.element_ty))  # [16, 16]
