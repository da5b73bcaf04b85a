"""Dot products of pairs of tokens under a gate per channel, without an exponent above 0.

    pairs_ij = sum_c a_ic b_jc exp(-(D_ic - D_jc))    for j <= i,    D = running sum of the rates

exp(D_jc) alone overflows where rates are large. So a chunk is halved again and again: a pair of different halves is
anchored at the border between them, where the decay up to the border and the decay after it are both at most 1. Each
pair of different tokens meets at exactly one border. The sums start at the border, so they lose no digits either.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class _Level:
    """Blocks of 2 * half tokens, each split in the middle."""

    half: int
    late: Tensor
    """exp of minus the decay from the border to each token after it: (rows, blocks, half, channels)."""
    early: Tensor
    """exp(-(sum of the rates from each earlier token up to the border))."""


def padded_length(time: int) -> int:
    """Return the smallest power of 2 that is at least `time`: halving needs one."""
    return 1 << max(time - 1, 0).bit_length()


def channel_pairs(asks: Tensor, keys: Tensor, rates: Tensor) -> Tensor:
    """Return (rows, group, time, time), zero above the diagonal.

    asks (rows, group, time, channels), keys and rates (rows, time, channels).
    """
    time = keys.shape[1]
    asks, keys, rates = (_pad(x, padded_length(time)) for x in (asks, keys, rates))
    pairs = torch.diag_embed((asks * keys[:, None]).sum(-1))
    for level in _levels(rates):
        late, early = _fade(asks, keys, level)
        products = late.flatten(2, 3) @ early.transpose(-1, -2)  # rows blocks group*half half
        products = products.unflatten(2, (asks.shape[1], level.half)).transpose(1, 2)
        pairs = pairs + _place(products)
    return pairs[..., :time, :time]


def channel_pairs_backward(gradient: Tensor, asks: Tensor, keys: Tensor, rates: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of asks and keys; what `gradient` holds above the diagonal is not read."""
    time, length, group = keys.shape[1], padded_length(keys.shape[1]), asks.shape[1]
    asks, keys, rates = (_pad(x, length) for x in (asks, keys, rates))
    gradient = functional.pad(gradient, (0, length - time, 0, length - time))
    diagonal = gradient.diagonal(dim1=-2, dim2=-1)[..., None]
    ask_gradient, key_gradient = diagonal * keys[:, None], (diagonal * asks).sum(1)
    for level in _levels(rates):
        half = level.half
        late, early = _fade(asks, keys, level)
        products = _take(gradient, half).transpose(1, 2).flatten(2, 3)  # rows blocks group*half half
        to_late = (products @ early).unflatten(2, (group, half)) * level.late[:, :, None]
        _split(ask_gradient, half)[..., 1, :, :].add_(to_late.transpose(1, 2))
        _split(key_gradient, half)[..., 0, :, :].add_((products.transpose(-1, -2) @ late.flatten(2, 3)) * level.early)
    return ask_gradient[..., :time, :], key_gradient[..., :time, :]


def channel_multiplications(time: int) -> int:
    """Return the multiplications of `channel_pairs` per row, member of a group and channel."""
    length = padded_length(time)
    return length * (length - 1) // 2


def _levels(rates: Tensor) -> Iterator[_Level]:
    """Yield the levels, from pairs of neighbors to the two halves of the chunk."""
    half = 1
    while 2 * half <= rates.shape[-2]:
        before, after = _split(rates, half).unbind(-3)
        late = after.cumsum(-2)
        # the decay of a token before the border is its own past, so the sum begins with the next token
        early = functional.pad(before[..., 1:, :], (0, 0, 0, 1)).flip(-2).cumsum(-2).flip(-2)
        yield _Level(half, torch.exp(-late), torch.exp(-early))
        half *= 2


def _fade(asks: Tensor, keys: Tensor, level: _Level) -> tuple[Tensor, Tensor]:
    """Return asks after the borders (rows, blocks, group, half, channels) and keys before them, both decayed."""
    late = _split(asks, level.half)[..., 1, :, :].transpose(1, 2) * level.late[:, :, None]
    return late, _split(keys, level.half)[..., 0, :, :] * level.early


def _split(x: Tensor, half: int) -> Tensor:
    """View (..., time, channels) as (..., blocks, 2, half, channels)."""
    return x.unflatten(-2, (-1, 2, half))


def _take(pairs: Tensor, half: int) -> Tensor:
    """Return the lower left quarter of each block on the diagonal: (..., blocks, half, half)."""
    blocks = pairs.unflatten(-1, (-1, 2, half)).unflatten(-4, (-1, 2, half))  # ... blocks 2 half blocks 2 half
    return blocks[..., :, 1, :, :, 0, :].diagonal(dim1=-4, dim2=-2).movedim(-1, -3)


def _place(products: Tensor) -> Tensor:
    """Undo `_take`, with zeros elsewhere."""
    blocks, half = products.shape[-3:-1]
    quarters = torch.diag_embed(products.movedim(-3, -1), dim1=-4, dim2=-2)  # ... blocks half blocks half
    quarters = functional.pad(quarters.unsqueeze(-2).unsqueeze(-5), (0, 0, 0, 1, 0, 0, 0, 0, 1, 0))
    return quarters.reshape(*products.shape[:-3], 2 * blocks * half, 2 * blocks * half)


def _pad(x: Tensor, length: int) -> Tensor:
    return functional.pad(x, (0, 0, 0, length - x.shape[-2]))
