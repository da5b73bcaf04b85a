"""Kernel of one decoding step of the delta rule: the state is updated in place and read in the same pass.

    S = exp(-decay) S;    S += k (beta (v - S' k))';    out = scale S' q

Value columns do not depend on each other, so a program takes some of one state, and serves every query head with them.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from qkv.attention.internal import delta_rule, gates
from qkv.attention.triton.kernels.common import Pointer
from qkv.attention.triton.kernels.delta_common import inverse_length

EPS = tl.constexpr(delta_rule.EPS)
CLOSED = tl.constexpr(gates.CLOSED)


class DeltaStepPointers(NamedTuple):
    """Tensors of `delta_step`."""

    q: Pointer
    k: Pointer
    v: Pointer
    decay: Pointer
    beta: Pointer
    starts: Pointer
    state: Pointer
    out: Pointer


@triton.jit
def delta_step(pointers, strides, sizes, scale, TILES: tl.constexpr):
    """Update and read some value columns of one state."""
    row, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * TILES.BLOCK_V
    batch, head = row // sizes.heads, row % sizes.heads
    key_head = head * sizes.key_heads // sizes.heads
    keys, columns = tl.arange(0, TILES.BLOCK_K), first + tl.arange(0, TILES.BLOCK_V)
    at = row * (TILES.KEY_DIM * TILES.VALUE_DIM) + keys[:, None] * TILES.VALUE_DIM + columns[None, :]
    inside = (keys < TILES.KEY_DIM)[:, None] & (columns < TILES.VALUE_DIM)[None, :]
    state = tl.load(pointers.state + at, mask=inside, other=0.0)  # [BLOCK_K, BLOCK_V]
    if TILES.HAS_DECAY:
        rate = tl.load(pointers.decay + batch * strides.decay.batch + head * strides.decay.head)  # scalar
        state *= tl.exp(-tl.minimum(rate.to(tl.float32), CLOSED))
    if TILES.HAS_STARTS:
        state = tl.where(tl.load(pointers.starts + batch) != 0, 0.0, state)  # [BLOCK_K, BLOCK_V]
    key = _load_unit(pointers.k + batch * strides.k.batch + key_head * strides.k.head, TILES)  # [BLOCK_K]
    value = tl.load(
        pointers.v + batch * strides.v.batch + key_head * strides.v.head + columns,
        mask=columns < TILES.VALUE_DIM,
        other=0.0,
    )  # [BLOCK_V]
    error = value.to(tl.float32) - tl.sum(state * key[:, None], 0)  # [BLOCK_V]
    if TILES.HAS_BETA:
        error *= tl.load(pointers.beta + batch * strides.beta.batch + head * strides.beta.head).to(tl.float32)  # scalar
    state += key[:, None] * error[None, :]
    tl.store(pointers.state + at, state, mask=inside)  # [BLOCK_K, BLOCK_V]
    for member in range(TILES.GROUP):
        query_head = head * TILES.GROUP + member
        query = _load_unit(pointers.q + batch * strides.q.batch + query_head * strides.q.head, TILES)  # [BLOCK_K]
        found = tl.sum(state * query[:, None], 0) * scale  # [BLOCK_V]
        to = pointers.out + batch * strides.out.batch + query_head * strides.out.head + columns
        tl.store(to, found.to(pointers.out.dtype.element_ty), mask=columns < TILES.VALUE_DIM)  # [BLOCK_V]


@triton.jit
def _load_unit(pointer, TILES: tl.constexpr):
    """Load a vector divided by its length."""
    keys = tl.arange(0, TILES.BLOCK_K)  # [BLOCK_K]
    x = tl.load(pointer + keys, mask=keys < TILES.KEY_DIM, other=0.0).to(tl.float32)  # [BLOCK_K]
    return x * inverse_length(tl.sum(x * x, 0), EPS)
