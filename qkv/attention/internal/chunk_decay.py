"""Decay inside one chunk of the chunked form: by distance, by gates, and by the starts of documents.

A chunk sees past keys through the state. With d the sums of the rates inside the chunk and d_C the sum at its end:

    query i reads the state times exp(-d_i);   key j is added to the state times exp(d_j - d_C);
    the state itself is multiplied by exp(-d_C);   the pair (i, j) by exp(d_j - d_i)

A start between two tokens replaces the factor by 0. Every factor is at most 1.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from qkv.attention.base import expand_heads
from qkv.attention.internal.gates import document_index, visible_rates
from qkv.attention.internal.layout import decay_factors, mask_sequence
from qkv.attention.internal.precision import upcast_dtype
from qkv.attention.internal.validation import Modifiers

BLOCK = 16
"""Tokens of a block inside which a channel gate is applied pair by pair."""


class ChunkExtras(NamedTuple):
    """Sequences that follow q, k and v in a chunk, in this order, as far as they are given."""

    mask: bool
    rates: bool
    starts: bool
    by_channel: bool

    @classmethod
    def of(cls, modifiers: Modifiers, key_heads: int) -> tuple["ChunkExtras", tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return these flags, the constants and the sequences for `chunked_scan`; the state has `key_heads` heads."""
        decay, starts, gated = modifiers.decay, modifiers.starts, modifiers.gated
        flags = cls(modifiers.mask is not None, gated, starts is not None, modifiers.channel_gated)
        constants = () if decay is None or gated else (decay,)
        rates: tuple[Tensor, ...] = ()
        if decay is not None and gated:
            wide = expand_heads(decay, key_heads)
            rates = (wide if modifiers.channel_gated else wide[..., None],)
        return flags, constants, (*mask_sequence(modifiers.mask), *rates, *mask_sequence(starts))

    def read(
        self, constants: Sequence[Tensor], sequences: Sequence[Tensor], k: Tensor
    ) -> tuple[Tensor | None, "ChunkDecay | None"]:
        """Return the mask and the decay of a chunk; `constants` holds the rate per head, if there is one."""
        given = iter(sequences)
        mask, rates, starts = (next(given) if present else None for present in self[:3])
        batch, key_heads, time, _ = k.shape
        dtype = upcast_dtype(k.dtype)
        if constants and starts is None:
            return mask, decay_by_distance(constants[0].to(dtype).repeat(batch)[:, None, None], time)
        if rates is not None:
            rates = visible_rates(rates, None if mask is None else mask[:, 0, :, 0])
        elif constants:
            rates = visible_rates(constants[0][None, :, None, None]).expand(batch, -1, time, -1)
        elif starts is not None:
            rates = visible_rates(k.new_zeros(batch, key_heads, time, 1))
        else:
            return mask, None
        return mask, decay_by_gate(rates, starts, dtype, by_channel=self.by_channel)


class ChunkDecay(NamedTuple):
    """Factors of one chunk: a row per batch element and key head; `channels` is 1, or key_dim for a channel gate."""

    query: Tensor
    """Factor of the state, as each query reads it: (rows, time, channels)."""
    key: Tensor
    """Factor of each key, as it is added to the state: (rows, time, channels)."""
    state: Tensor
    """Factor of the state at the end of the chunk: (rows, channels, 1)."""
    pairs: Tensor | None
    """Factor of each pair of query and key: (rows, time, time)."""
    sums: Tensor | None = None
    """Sums of a channel gate, for `channel_similarity`: (rows, time, key_dim)."""


class PartDecay(NamedTuple):
    """Factors of a whole part of a sequence; `channels` is 1, or key_dim for a channel gate."""

    key: Tensor
    """Factor of each key, as it is added to the state: (batch, key_heads, time, channels)."""
    state: Tensor
    """Factor of the state at the end of the part: (batch, key_heads, channels, 1)."""


def fade_part(modifiers: Modifiers, k: Tensor) -> PartDecay | None:
    """Return how a part with these keys fades, for a state with the heads of k; None if nothing fades."""
    decay, starts, dtype = modifiers.decay, modifiers.starts, upcast_dtype(k.dtype)
    batch, heads, time, _ = k.shape
    if decay is None:
        if starts is None:
            return None
        rates = visible_rates(k.new_zeros(batch, heads, time, 1))
    elif modifiers.gated:
        rates = visible_rates(expand_heads(decay, heads), modifiers.mask)
        rates = rates if modifiers.channel_gated else rates[..., None]
    else:
        rates = visible_rates(decay[None, :, None, None]).expand(batch, -1, time, -1)
    sums = rates.cumsum(2)
    total = functional.pad(sums, (0, 0, 1, 0))[:, :, -1:]
    key, state = (sums - total).clamp(max=0), -total
    if starts is not None:
        index = document_index(starts)[:, None, :, None]
        last = functional.pad(index, (0, 0, 1, 0))[:, :, -1:]
        key, state = key.masked_fill(index != last, -torch.inf), state.masked_fill(last > 0, -torch.inf)
    return PartDecay(key.to(dtype).exp(), state.to(dtype).exp().transpose(2, 3))


def decay_by_distance(rate: Tensor, time: int) -> ChunkDecay:
    """Return the factors of one rate per row: (rows, 1, 1)."""
    age = torch.arange(1, time + 1, device=rate.device, dtype=rate.dtype)
    return ChunkDecay(
        query=torch.exp(-rate * age[:, None]),
        key=torch.exp(-rate * (time - age)[:, None]),
        state=torch.exp(-rate * time),
        pairs=decay_factors(rate, time),
    )


def decay_by_gate(rates: Tensor, starts: Tensor | None, dtype: torch.dtype, *, by_channel: bool = False) -> ChunkDecay:
    """Return the factors of visible rates (batch, key_heads, time, channels) and starts (batch, 1, time, 1)."""
    sums = rates.cumsum(2).flatten(0, 1)
    end = _last(sums)
    exponents = [-sums, (sums - end).clamp(max=0), -end]
    pairs = None if by_channel else (sums.transpose(1, 2) - sums).clamp(max=0)
    if starts is not None:
        index = document_index(starts[:, 0, :, 0])[:, :, None].repeat_interleave(rates.shape[1], 0)  # rows time 1
        last = _last(index)
        passed = index > 0, index != last, last > 0
        exponents = [x.masked_fill(closed, -torch.inf) for x, closed in zip(exponents, passed, strict=True)]
        other = index != index.transpose(1, 2)
        pairs = (sums.new_zeros(()) if pairs is None else pairs).masked_fill(other, -torch.inf)
    query, key, state = (x.to(dtype).exp() for x in exponents)
    factors = None if pairs is None else pairs.to(dtype).exp()
    return ChunkDecay(query, key, state.transpose(1, 2), factors, sums if by_channel else None)


def _last(x: Tensor) -> Tensor:
    """Return the value at the last token, 0 without tokens: (rows, 1, channels)."""
    return functional.pad(x, (0, 0, 1, 0))[:, -1:]


def channel_similarity(queries: Tensor, keys: Tensor, sums: Tensor) -> Tensor:
    """Return sum_c q_ic k_jc exp(d_jc - d_ic) for j <= i: (rows, group, time, time).

    `queries` are (rows, group, time, key_dim); `keys` and `sums` (rows, time, key_dim). In a block of 16 tokens the
    exponents are formed pair by pair. For earlier keys the factor is split at the first token of the block, so that no
    exponent is positive, whatever the rates.
    """
    group, time = queries.shape[1:3]
    blocks = []
    for first in range(0, max(time, 1), BLOCK):
        end = min(first + BLOCK, time)
        q, own = queries[:, :, first:end], sums[:, first:end]
        inside = (own[:, None] - own[:, :, None]).clamp(max=0).to(keys.dtype).exp()  # rows query key channel
        scores = (keys[:, None, first:end] * inside) @ q.permute(0, 2, 3, 1)  # rows query key group
        parts = [scores.permute(0, 3, 1, 2)]
        if first:
            split = sums[:, first - 1 : first]
            near = q * (split - own).to(keys.dtype).exp()[:, None]
            far = keys[:, :first] * (sums[:, :first] - split).to(keys.dtype).exp()
            past = near.flatten(1, 2) @ far.transpose(1, 2)
            parts.insert(0, past.view(-1, group, end - first, first))
        blocks.append(functional.pad(torch.cat(parts, -1), (0, time - end)))
    return torch.cat(blocks, 2)


def block_pairs(time: int) -> int:
    """Return the pairs of query and key that `channel_similarity` computes."""
    whole, rest = time // BLOCK, time % BLOCK
    return BLOCK**2 * whole * (whole + 1) // 2 + rest * time
