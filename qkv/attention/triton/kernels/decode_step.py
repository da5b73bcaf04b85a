"""Kernels of one decoding step: the state is updated in place and read in the same pass.

    kv_sum_f *= fade;    kv_sum_f += features_f(k) v';    out = sum_f features_f(q) kv_sum_f / normalizer

The time does not depend on the number of tokens before. A program holds some features of a key head, and serves every
query head of its group with one update. A large state is too much for one program: several parts share it, and their
partial outputs are then added in order.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from qkv.attention.triton.kernels.common import HeadStrides, Pointer, safe_inverse


class DecodePointers(NamedTuple):
    """Tensors of `decode_step`."""

    q: Pointer
    k: Pointer
    v: Pointer
    first: Pointer
    second: Pointer
    q_terms: Pointer
    k_terms: Pointer
    mask: Pointer
    decay: Pointer
    kv_sum: Pointer
    k_sum: Pointer
    out: Pointer
    partial_out: Pointer
    partial_norm: Pointer


class DecodeStrides(NamedTuple):
    """Strides of `decode_step`."""

    q: HeadStrides
    k: HeadStrides
    v: HeadStrides
    out: HeadStrides


class CombinePointers(NamedTuple):
    """Tensors of `combine_parts`."""

    partial_out: Pointer
    partial_norm: Pointer
    out: Pointer


@triton.jit
def decode_step(
    pointers, strides, key_heads, scale, KIND: tl.constexpr,
    GROUP: tl.constexpr, BLOCK_G: tl.constexpr, FEATURES: tl.constexpr, BLOCK_F: tl.constexpr,
    FEATURES_PER_PART: tl.constexpr, PARTS: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_V: tl.constexpr,
    NORMALIZE: tl.constexpr, HAS_MASK: tl.constexpr, HAS_DECAY: tl.constexpr, HAS_GATE: tl.constexpr,
):  # fmt: skip
    """Update and read FEATURES_PER_PART features of one key head of one sequence."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    batch, key_head = row // key_heads, row % key_heads
    columns, members = tl.arange(0, BLOCK_V), tl.arange(0, BLOCK_G)
    valid = columns < VALUE_DIM
    visible = valid
    if HAS_MASK:
        visible = valid & (tl.load(pointers.mask + batch) != 0)  # scalar
    fade = 1.0
    if HAS_DECAY:
        fade = tl.exp(-tl.load(pointers.decay + key_head))  # scalar
    if HAS_GATE:
        fade = tl.exp(-tl.load(pointers.decay + row))  # scalar
    v_row = pointers.v + batch * strides.v.batch + key_head * strides.v.head
    value = tl.load(v_row + columns, mask=visible, other=0.0).to(tl.float32)  # [BLOCK_V]
    out = tl.zeros([BLOCK_G, BLOCK_V], tl.float32)
    norm = tl.zeros([BLOCK_G], tl.float32)
    first_feature = part * FEATURES_PER_PART
    for start in range(first_feature, tl.minimum(first_feature + FEATURES_PER_PART, FEATURES), BLOCK_F):
        features = start + tl.arange(0, BLOCK_F)  # [BLOCK_F]
        inside = features < FEATURES
        k_row = pointers.k + batch * strides.k.batch + key_head * strides.k.head
        phi_k = KIND.token_features(
            k_row, features, pointers.first, pointers.second, pointers.k_terms, 1.0, FEATURES
        )  # [BLOCK_F]  # fmt: skip
        if HAS_MASK:  # not by a product: a hidden key may hold NaN
            phi_k = tl.where(tl.load(pointers.mask + batch) != 0, phi_k, 0.0)  # scalar
        offsets = (row * FEATURES + features)[:, None] * VALUE_DIM + columns[None, :]
        state = inside[:, None] & valid[None, :]
        old_kv = tl.load(pointers.kv_sum + offsets, mask=state, other=0.0)  # [BLOCK_F, BLOCK_V]
        kv_sum = old_kv * fade + phi_k[:, None] * value[None, :]
        tl.store(pointers.kv_sum + offsets, kv_sum, mask=state)  # [BLOCK_F, BLOCK_V]
        k_sum = tl.zeros([BLOCK_F], tl.float32)
        if NORMALIZE:
            old_k = tl.load(pointers.k_sum + row * FEATURES + features, mask=inside, other=0.0)  # [BLOCK_F]
            k_sum = old_k * fade + phi_k
            tl.store(pointers.k_sum + row * FEATURES + features, k_sum, mask=inside)  # [BLOCK_F]
        for member in tl.static_range(GROUP):
            head = key_head * GROUP + member
            q_row = pointers.q + batch * strides.q.batch + head * strides.q.head
            phi_q = KIND.token_features(
                q_row, features, pointers.first, pointers.second, pointers.q_terms, scale, FEATURES
            )  # [BLOCK_F]  # fmt: skip
            mine = (members == member).to(tl.float32)
            out += mine[:, None] * tl.sum(phi_q[:, None] * kv_sum, 0)[None, :]
            norm += mine * tl.sum(phi_q * k_sum, 0)
    if PARTS == 1:
        first_head = pointers.out + batch * strides.out.batch + key_head * GROUP * strides.out.head
        _store_outputs(out, norm, first_head, strides.out.head, GROUP, VALUE_DIM, NORMALIZE)
    else:
        slots = (row * PARTS + part) * BLOCK_G + members
        tl.store(pointers.partial_out + slots[:, None] * BLOCK_V + columns[None, :], out)  # [BLOCK_G, BLOCK_V]
        tl.store(pointers.partial_norm + slots, norm)  # [BLOCK_G]


@triton.jit
def combine_parts(
    pointers, out_strides, key_heads, GROUP: tl.constexpr, BLOCK_G: tl.constexpr, PARTS: tl.constexpr,
    VALUE_DIM: tl.constexpr, BLOCK_V: tl.constexpr, NORMALIZE: tl.constexpr,
):  # fmt: skip
    """Add the partial outputs of one key head."""
    row = tl.program_id(0).to(tl.int64)
    members, columns = tl.arange(0, BLOCK_G), tl.arange(0, BLOCK_V)
    out = tl.zeros([BLOCK_G, BLOCK_V], tl.float32)
    norm = tl.zeros([BLOCK_G], tl.float32)
    for part in range(PARTS):
        slots = (row * PARTS + part) * BLOCK_G + members
        out += tl.load(pointers.partial_out + slots[:, None] * BLOCK_V + columns[None, :])  # [BLOCK_G, BLOCK_V]
        norm += tl.load(pointers.partial_norm + slots)  # [BLOCK_G]
    first_head = pointers.out + row // key_heads * out_strides.batch + row % key_heads * GROUP * out_strides.head
    _store_outputs(out, norm, first_head, out_strides.head, GROUP, VALUE_DIM, NORMALIZE)


@triton.jit
def _store_outputs(
    out, norm, first_head, stride, GROUP: tl.constexpr, VALUE_DIM: tl.constexpr, NORMALIZE: tl.constexpr
):  # fmt: skip
    """Divide by the normalizers, and store the outputs of a group of query heads."""
    members, columns = tl.arange(0, out.shape[0]), tl.arange(0, out.shape[1])
    if NORMALIZE:
        out *= safe_inverse(norm, members < GROUP)[:, None]
    inside = (members < GROUP)[:, None] & (columns < VALUE_DIM)[None, :]
    addresses = first_head + members[:, None] * stride + columns[None, :]
    tl.store(addresses, out.to(first_head.dtype.element_ty), mask=inside)  # [BLOCK_G, BLOCK_V]
