"""Sizes of a call, and layouts of the chunked form: one row per batch element and key head, with its queries."""

import torch
from torch import Tensor

from qkv.attention.internal.validation import Modifiers
from qkv.cost import Shape
from qkv.shapes import Keys, Mask, Queries, Values


def call_shape(q: Queries, k: Keys, v: Values, modifiers: Modifiers) -> Shape:
    """Return the sizes of a call, for its cost."""
    batch, heads, queries, key_dim = q.shape
    sizes = batch, heads, queries, k.shape[2], key_dim, v.shape[3], k.shape[1]
    return Shape(
        *sizes,
        causal=modifiers.causal,
        decay=modifiers.decay is not None and not modifiers.gated,
        gate_heads=modifiers.gate_heads,
        channel_gate=modifiers.channel_gated,
        element_bytes=q.element_size(),
    )


def state_rows(shape: Shape) -> int:
    """Return the state rows: one per key head or, if each query head has its own rates, one per query head."""
    return shape.rows if shape.decay or shape.gate_heads == shape.heads else shape.key_rows


def group_queries(q: Queries, key_heads: int) -> Tensor:
    """Group the query heads that share a key head."""
    return q.unflatten(1, (key_heads, -1))  # batch key_heads group queries key_dim


def to_rows(q: Tensor) -> Tensor:
    """Lay out the queries of a group one after the other: (batch*key_heads, group*time, key_dim)."""
    batch, key_heads, group, time, key_dim = q.shape
    return q.reshape(batch * key_heads, group * time, key_dim)


def from_rows(out: Tensor, q: Tensor) -> Tensor:
    """Undo `to_rows`, rounded to the dtype of the queries."""
    return out.view(*q.shape[:4], out.shape[-1]).to(q.dtype)


def mask_sequence(mask: Mask | None) -> tuple[Tensor, ...]:
    """Return a padding mask as a sequence for `chunked_scan`; empty without a mask."""
    return () if mask is None else (mask[:, None, :, None],)  # batch 1 keys 1


def mask_rows(mask: Tensor, key_heads: int) -> Tensor:
    """Repeat a chunk of `mask_sequence` for each key head."""
    return mask.expand(-1, key_heads, -1, -1).flatten(0, 1)  # batch*key_heads time 1


def scale_rows(rows: Tensor, factors: Tensor, group: int) -> Tensor:
    """Multiply rows of `to_rows` by a factor per token, (rows, time, 1 or key_dim), the same for a whole group."""
    if group == 1:
        return rows * factors
    return (rows.unflatten(1, (group, -1)) * factors[:, None]).flatten(1, 2)


def row_product(rows: Tensor, column: Tensor) -> Tensor:
    """Return rows @ column, computed transposed: BLAS is several times faster with the vector on the left."""
    return torch.bmm(column.transpose(1, 2), rows.transpose(1, 2)).transpose(1, 2)


def decay_factors(rate: Tensor, time: int) -> Tensor:
    """Return exp(-rate * (i - j)) for j <= i, and 1 above the diagonal, which is masked anyway."""
    position = torch.arange(time, device=rate.device, dtype=rate.dtype)
    distance = (position[:, None] - position).clamp(min=0)
    return torch.exp(-rate * distance)
