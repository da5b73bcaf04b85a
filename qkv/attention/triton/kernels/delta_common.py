"""What the kernels of the delta rule share: chunks of 64 tokens, the gates of a chunk, and records of arguments.

    d = running sum of the rates in the chunk, d_C at its end    f_ij = exp(d_j - d_i) for j <= i    unit q and k
    N = strict_tril(beta_i k_i.k_j f_ij)       P = scale tril(q_i.k_j f_ij)                   `delta_pairs`
    M = (I + N)^-1                                                                            `delta_inverse`
    X = V - exp(-d) K S        U = M beta X    S' = exp(-d_C) S + (exp(d - d_C) K)' U         `delta_walk`
    O = scale exp(-d) Q S + P U                                                               `delta_walk`

Only the walk depends on the state, so all else is computed before it, for all chunks in parallel. The backward walks
from the last chunk to the first (`delta_walk_back`), and then takes all chunks in parallel (`delta_grad`). States are
transposed, (value columns, key columns): each product of a walk then has the previous result as its left operand, which
tensor cores read from registers.

Keys and queries stay as they are, and their dot products are multiplied by the inverse lengths in float32: unit
vectors, rounded to bfloat16, would have a larger error. A sum d is two float32 numbers, because the difference of two
large ones has few digits. Programs do not depend on each other and nothing is added atomically, so a sequence has the
same bits in any batch.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import triton
import triton.language as tl

from qkv.attention.triton.constants import ConstexprRecord
from qkv.attention.triton.kernels.common import Strides

CHUNK_TOKENS = 64
LOG2_E = tl.constexpr(math.log2(math.e))
CHUNK = tl.constexpr(CHUNK_TOKENS)
SYSTEM_SIZE = 10 * 16 * 16
SYSTEM = tl.constexpr(SYSTEM_SIZE)
"""Elements of N of a chunk: 10 blocks of 16 tokens."""
GATE_ROWS = 6
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
KEEP = tl.constexpr(5)
"""Factor of the state before the chunk in the one after it, 64 times."""
FACTORS = tl.constexpr(4)
"""Factors of a token; see `split_factors`.

A walk loads a tile of them one chunk ahead. Vectors would be loaded in the layout of a product, 16 registers each.
"""


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
    segment_chunks: int
    """Chunks per segment: segments of a long sequence are walked in parallel."""


@dataclass(frozen=True, kw_only=True)
class DeltaTiles(ConstexprRecord):
    """Sizes of tensors and tiles, and flags."""

    KEY_DIM: int
    BLOCK_K: int
    """KEY_DIM, padded to a power of two."""
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
    SOLVE_PRECISION: str
    """How those of `delta_inverse` are: the errors of bf16x3 are far below a rounding of M to bfloat16."""


@triton.jit
def chunk_gates(gates, row, chunk, sizes):
    """Return the address of a chunk's gates."""
    return gates + (row.to(tl.int64) * sizes.chunks + chunk) * (6 * CHUNK)


@triton.jit
def load_factors(factors, row, chunk, sizes, TILES: tl.constexpr):
    """Load the factors of the tokens of a chunk, a tile [CHUNK, FACTORS] per query head."""
    found: tl.tuple = ()
    at = tl.arange(0, CHUNK)[:, None] * FACTORS + tl.arange(0, FACTORS)[None, :]
    for member in tl.static_range(TILES.GROUP):
        index = (row.to(tl.int64) * TILES.GROUP + member) * sizes.chunks + chunk
        tile = tl.load(factors + index * (CHUNK * FACTORS) + at)  # [CHUNK, FACTORS]
        found = found + (tile,)  # noqa: RUF005 triton knows no starred expressions
    return found


@triton.jit
def split_factors(tile):
    """Return the columns of a tile of factors.

    - scale / length of each query
    - the same times exp(-d)
    - factor of the state before the chunk as the key of each token reads it, negative: -exp(-d) / length
    - factor of each key in the state after the chunk: exp(d - d_C) / length
    """
    even, odd = tl.split(tl.reshape(tile, [CHUNK, 2, 2]))
    asks, key_read = tl.split(even)
    faded_asks, key_write = tl.split(odd)
    return asks, faded_asks, key_read, key_write


@triton.jit
def load_gate(base, GATE: tl.constexpr):
    """Load one vector of a chunk's gates."""
    return tl.load(base + GATE * CHUNK + tl.arange(0, CHUNK))  # [CHUNK]


@triton.jit
def load_keep(gates, row, chunk, sizes):
    """Load the factor of the state before a chunk in the one after it."""
    return tl.load(chunk_gates(gates, row, chunk, sizes) + KEEP * CHUNK)  # scalar


@triton.jit
def pair_factors(high, low, document, TILES: tl.constexpr):
    """Return f_ij of token i that reads and token j, 0 above the diagonal and between documents."""
    tokens = tl.arange(0, CHUNK)  # [CHUNK]
    seen = tokens[:, None] >= tokens[None, :]
    factors = tl.where(seen, 1.0, 0.0)  # [CHUNK, CHUNK]
    if TILES.HAS_DECAY:
        # exp2 flushes what is below float32 to 0, which takes fewer instructions
        exponents = high[None, :] - high[:, None]
        if tl.float32 == TILES.DTYPE:  # a rounding of d is far below one of the result to bfloat16
            exponents += low[None, :] - low[:, None]
        factors = tl.where(seen, tl.exp2(tl.minimum(exponents, 0.0) * LOG2_E), 0.0)
    if TILES.HAS_STARTS:
        factors = tl.where(document[:, None] == document[None, :], factors, 0.0)
    return factors


@triton.jit
def matrix_offsets():
    """Return the offsets of a chunk's [CHUNK, CHUNK] matrix."""
    tokens = tl.arange(0, CHUNK)
    return tokens[:, None] * CHUNK + tokens[None, :]


@triton.jit
def state_offsets(first, TILES: tl.constexpr):
    """Return the offsets [BLOCK_V, BLOCK_K] of a tile of value columns in a padded, transposed state."""
    return (first + tl.arange(0, TILES.BLOCK_V))[:, None] * TILES.BLOCK_K + tl.arange(0, TILES.BLOCK_K)[None, :]


@triton.jit
def token_offsets(first, TILES: tl.constexpr):
    """Return the offsets [CHUNK, BLOCK_V] of a tile of value columns in the padded tokens of a chunk."""
    return tl.arange(0, CHUNK)[:, None] * TILES.PADDED_V + (first + tl.arange(0, TILES.BLOCK_V))[None, :]


@triton.jit
def inverse_length(squares, EPS: tl.constexpr):
    """Return 1 / length by the squared length; 0 for a zero vector."""
    return tl.where(squares == 0.0, 0.0, tl.rsqrt(squares + EPS))


@triton.jit
def load_state(pointer, index, first, TILES: tl.constexpr):
    """Load a tile of value columns of a (..., KEY_DIM, VALUE_DIM) state, transposed."""
    keys, columns = tl.arange(0, TILES.BLOCK_K), first + tl.arange(0, TILES.BLOCK_V)
    inside = (columns < TILES.VALUE_DIM)[:, None] & (keys < TILES.KEY_DIM)[None, :]
    at = pointer + index.to(tl.int64) * (TILES.KEY_DIM * TILES.VALUE_DIM)
    at += columns[:, None] + keys[None, :] * TILES.VALUE_DIM
    return tl.load(at, mask=inside, other=0.0)  # [BLOCK_V, BLOCK_K]


@triton.jit
def store_state(pointer, state, index, first, TILES: tl.constexpr):
    """Store a tile at the addresses of `load_state`."""
    keys, columns = tl.arange(0, TILES.BLOCK_K), first + tl.arange(0, TILES.BLOCK_V)
    inside = (columns < TILES.VALUE_DIM)[:, None] & (keys < TILES.KEY_DIM)[None, :]
    at = pointer + index.to(tl.int64) * (TILES.KEY_DIM * TILES.VALUE_DIM)
    at += columns[:, None] + keys[None, :] * TILES.VALUE_DIM
    tl.store(at, state, mask=inside)  # [BLOCK_V, BLOCK_K]
