"""What the kernels of the delta rule share: chunks of 64 tokens, the gates of a chunk, and records of arguments.

    d = running sum of the rates in the chunk, d_C at its end    f_ij = exp(d_j - d_i) for j <= i    unit q and k
    N = strict_tril(beta_i k_i.k_j f_ij)       M = (I + N)^-1                                 `delta_prepare`
    X = V - exp(-d) K S        U = M beta X    S' = exp(-d_C) S + (exp(d - d_C) K)' U         `delta_walk`
    O = scale (exp(-d) Q S + P U),  P = tril(q_i.k_j f_ij)                                    `delta_output`

The backward walks from the last chunk to the first (`delta_walk_back`), and then takes all chunks in parallel
(`delta_grad`). Keys and queries stay as they are, and their dot products are multiplied by the inverse lengths in
float32: unit vectors, rounded to bfloat16, would have a larger error. A sum d is two float32 numbers, because the
difference of two large ones has few digits. Programs do not depend on each other and nothing is added atomically, so a
sequence has the same bits in any batch.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import triton
import triton.language as tl

from qkv.attention.triton.constants import ConstexprRecord
from qkv.attention.triton.kernels.common import Strides

CHUNK_TOKENS = 64
CHUNK = tl.constexpr(CHUNK_TOKENS)
GATE_ROWS = 8
"""Vectors of a chunk in the tensor of gates, (rows, chunks, GATE_ROWS, CHUNK): see below."""
HIGH = tl.constexpr(0)
"""d, rounded to float32."""
LOW = tl.constexpr(1)
"""What the rounding of d left."""
DOCUMENT = tl.constexpr(2)
"""Starts of documents in the chunk up to each token."""
INVERSE = tl.constexpr(3)
"""1 / length of each key, 0 for a zero key."""
BETA = tl.constexpr(4)
READ = tl.constexpr(5)
"""Factor of the state before the chunk, as each token reads it."""
WRITE = tl.constexpr(6)
"""Factor of each token in the state after the chunk."""
KEEP = tl.constexpr(7)
"""Factor of the state before the chunk in the one after it, 64 times."""


class TokenStrides(NamedTuple):
    """Strides of a (batch, heads, time) tensor."""

    batch: int
    head: int
    token: int


class DeltaStrides(NamedTuple):
    """Strides of inputs and outputs; those of an absent one are zeros."""

    q: Strides
    k: Strides
    v: Strides
    out: Strides
    """Outputs, or their gradients."""
    d_q: Strides
    d_k: Strides
    d_v: Strides
    decay: TokenStrides
    beta: TokenStrides


class DeltaSizes(NamedTuple):
    """Run-time sizes."""

    length: int
    chunks: int
    rows: int
    """batch * heads"""
    heads: int
    """States per batch element."""
    key_heads: int


@dataclass(frozen=True, kw_only=True)
class DeltaTiles(ConstexprRecord):
    """Sizes of tensors and tiles, and flags."""

    KEY_DIM: int
    BLOCK_K: int
    """KEY_DIM, padded to a power of two."""
    PIECE_K: int
    """Columns of keys that `delta_prepare` takes at a time."""
    VALUE_DIM: int
    PADDED_V: int
    """VALUE_DIM, padded to a power of two."""
    BLOCK_V: int
    """Value columns per tile."""
    GROUP: int
    """Query heads per state."""
    HAS_DECAY: bool
    HAS_BETA: bool
    HAS_STARTS: bool
    HAS_STATE: bool
    """Whether there is an initial state, or a gradient of the last one."""
    DTYPE: Any
    """Type of the operands of dot products."""
    PRECISION: str
    """How dot products of float32 are computed."""


@triton.jit
def chunk_gates(gates, row, chunk, sizes):
    """Return the address of a chunk's gates."""
    return gates + (row.to(tl.int64) * sizes.chunks + chunk) * (8 * CHUNK)


@triton.jit
def load_gate(base, GATE: tl.constexpr):
    """Load one vector of a chunk's gates."""
    return tl.load(base + GATE * CHUNK + tl.arange(0, CHUNK))  # [CHUNK]


@triton.jit
def pair_factors(base, TILES: tl.constexpr):
    """Return f_ij of query i and key j, 0 above the diagonal and between documents."""
    tokens = tl.arange(0, CHUNK)  # [CHUNK]
    seen = tokens[:, None] >= tokens[None, :]
    factors = tl.where(seen, 1.0, 0.0)  # [CHUNK, CHUNK]
    if TILES.HAS_DECAY:
        high, low = load_gate(base, HIGH), load_gate(base, LOW)
        exponents = (high[None, :] - high[:, None]) + (low[None, :] - low[:, None])
        factors = tl.where(seen, tl.exp(tl.minimum(exponents, 0.0)), 0.0)
    if TILES.HAS_STARTS:
        document = load_gate(base, DOCUMENT)
        factors = tl.where(document[:, None] == document[None, :], factors, 0.0)
    return factors


@triton.jit
def matrix_offsets():
    """Return the offsets of a chunk's [CHUNK, CHUNK] matrix."""
    tokens = tl.arange(0, CHUNK)
    return tokens[:, None] * CHUNK + tokens[None, :]


@triton.jit
def state_offsets(first, TILES: tl.constexpr):
    """Return the offsets [BLOCK_K, BLOCK_V] of a tile of value columns in a padded state."""
    return tl.arange(0, TILES.BLOCK_K)[:, None] * TILES.PADDED_V + (first + tl.arange(0, TILES.BLOCK_V))[None, :]


@triton.jit
def inverse_length(squares, EPS: tl.constexpr):
    """Return 1 / length by the squared length; 0 for a zero vector."""
    return tl.where(squares == 0.0, 0.0, tl.rsqrt(squares + EPS))
