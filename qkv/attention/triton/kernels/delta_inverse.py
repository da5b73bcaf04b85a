"""Kernel of M = (I + N)^-1, columns times beta, of a chunk.

The four blocks of 16 tokens on the diagonal are inverted by substitution in float32, since powers of N can be large
where M is small; a vector holds one row of all four. The other blocks follow:

    M_ij = -(sum of M_ik N_kj for j < k <= i) M_jj

One warp takes a chunk, so that no step waits for another warp.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from qkv.attention.triton.kernels.common import Pointer, program_and_row
from qkv.attention.triton.kernels.delta_common import BETA, CHUNK, SYSTEM, chunk_gates


class InversePointers(NamedTuple):
    """Tensors of `delta_inverse`."""

    gates: Pointer
    system: Pointer
    """N; see `delta_pairs`."""
    inverse: Pointer
    """M, columns times beta: (rows, chunks, CHUNK, CHUNK). It also holds the blocks of the diagonal for a while."""


@triton.jit
def delta_inverse(pointers, sizes, TILES: tl.constexpr):
    """Invert one chunk."""
    chunk, row = program_and_row(sizes.rows)
    index = row.to(tl.int64) * sizes.chunks + chunk
    system, out = pointers.system + index * SYSTEM, pointers.inverse + index * (CHUNK * CHUNK)
    corners = out.to(tl.pointer_type(tl.float32))
    diagonal = _load_diagonal(system)
    n10, n21, n32 = _load_block(system, 1), _load_block(system, 4), _load_block(system, 8)
    n20, n31, n30 = _load_block(system, 3), _load_block(system, 7), _load_block(system, 6)
    _substitute(diagonal, corners)
    tl.debug_barrier()  # other threads read this memory
    m00, m11, m22, m33 = (
        _load_block(corners, 0), _load_block(corners, 1), _load_block(corners, 2), _load_block(corners, 3)
    )  # fmt: skip
    zero = tl.zeros([16, 16], tl.float32)
    m10 = -_multiply(_multiply(m11, n10, zero, TILES), m00, zero, TILES)
    m21 = -_multiply(_multiply(m22, n21, zero, TILES), m11, zero, TILES)
    m32 = -_multiply(_multiply(m33, n32, zero, TILES), m22, zero, TILES)
    m20 = -_multiply(_multiply(m22, n20, _multiply(m21, n10, zero, TILES), TILES), m00, zero, TILES)
    m31 = -_multiply(_multiply(m33, n31, _multiply(m32, n21, zero, TILES), TILES), m11, zero, TILES)
    sum30 = _multiply(m33, n30, _multiply(m32, n20, _multiply(m31, n10, zero, TILES), TILES), TILES)
    m30 = -_multiply(sum30, m00, zero, TILES)
    tl.debug_barrier()  # the blocks of the diagonal were read
    beta = chunk_gates(pointers.gates, row, chunk, sizes) + BETA * CHUNK + tl.arange(0, 16)
    b0, b1, b2, b3 = tl.load(beta), tl.load(beta + 16), tl.load(beta + 32), tl.load(beta + 48)  # [16]
    _store_row(out, 0, m00 * b0[None, :], zero, zero, zero)
    _store_row(out, 1, m10 * b0[None, :], m11 * b1[None, :], zero, zero)
    _store_row(out, 2, m20 * b0[None, :], m21 * b1[None, :], m22 * b2[None, :], zero)
    _store_row(out, 3, m30 * b0[None, :], m31 * b1[None, :], m32 * b2[None, :], m33 * b3[None, :])


@triton.jit
def _load_block(blocks, BLOCK: tl.constexpr):
    part = tl.arange(0, 16)
    return tl.load(blocks + BLOCK * 256 + part[:, None] * 16 + part[None, :])  # [16, 16]


@triton.jit
def _multiply(a, b, total, TILES: tl.constexpr):
    return tl.dot(a, b, total, input_precision=TILES.SOLVE_PRECISION)  # [16, 16] x [16, 16]


@triton.jit
def _load_diagonal(system):
    """Load N_ik of the four blocks on the diagonal, for each i and k < i, before any is needed."""
    block = tl.arange(0, CHUNK) // 16  # [CHUNK]
    at = system + (block * (block + 3) // 2) * 256
    found: tl.tuple = ()
    for i in tl.static_range(16):
        for k in tl.static_range(i):
            factor = tl.load(at + i * 16 + k)  # [CHUNK]
            found = found + (factor,)  # noqa: RUF005 triton knows no starred expressions
    return found


@triton.jit
def _substitute(diagonal, corners):
    """Store the inverses of the blocks on the diagonal: row i is row i of I, minus N_ik times row k for k < i."""
    lanes = tl.arange(0, CHUNK)  # [CHUNK]: 16 columns of each block
    rows: tl.tuple = ()
    for i in tl.static_range(16):
        m = tl.where(lanes % 16 == i, 1.0, 0.0)  # [CHUNK]
        for k in tl.static_range(i):
            m -= diagonal[i * (i - 1) // 2 + k] * rows[k]
        tl.store(corners + lanes // 16 * 256 + i * 16 + lanes % 16, m)  # [CHUNK]
        rows = rows + (m,)  # noqa: RUF005 as above


@triton.jit
def _store_row(out, BLOCK: tl.constexpr, m0, m1, m2, m3):
    """Store 16 rows."""
    part = tl.arange(0, 16)  # [16]
    at = out + (BLOCK * 16 + part)[:, None] * CHUNK + part[None, :]
    tl.store(at, m0.to(out.dtype.element_ty))  # [16, 16]
    tl.store(at + 16, m1.to(out.dtype.element_ty))  # [16, 16]
    tl.store(at + 32, m2.to(out.dtype.element_ty))  # [16, 16]
    tl.store(at + 48, m3.to(out.dtype.element_ty))  # [16, 16]
