"""Gates: a decay rate per token, or per token and channel; and the first tokens of documents.

    D_t = sum of the rates of the visible tokens up to t
    weight of (i, j) times exp(D_j - D_i), j <= i; 0 if a document starts after j, up to i

A hidden token has rate 0: it neither writes nor forgets. A start counts even at a hidden token. Only exponents of at
most 0 are formed. Sums and differences are float64, because a float32 difference of two large sums has few digits.
"""

import torch
from torch import Tensor

from qkv.attention.internal.masking import hidden_keys

CLOSED = 800.0
"""Rate at which a gate is closed: exp(-800) is 0 even in float64. A larger rate, inf included, counts as this one."""

SUM_BYTES = 8
"""Bytes of one sum of rates."""


def visible_rates(decay: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the rates of a gate (batch, heads, keys) or (batch, heads, keys, key_dim), 0 at hidden tokens.

    Their dtype is float64; float32 on devices that have no float64.
    """
    if mask is not None:
        hidden = hidden_keys(mask)  # batch 1 keys 1
        decay = decay.masked_fill(hidden if decay.dim() > 3 else hidden[..., 0], 0)
    wide = torch.float32 if decay.device.type == "mps" else torch.float64
    return decay.to(wide).clamp(max=CLOSED)


def running_sums(decay: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return D, the sums of the visible rates up to each token, in the shape of `decay`."""
    return visible_rates(decay, mask).cumsum(2)


def pair_exponents(sums: Tensor, queries: int | None = None) -> Tensor:
    """Return D_j - D_i for the last `queries` tokens i and all tokens j; 0 for j > i, which is masked anyway.

    (batch, heads, keys) gives (batch, heads, queries, keys); channels stay last.
    """
    first = 0 if queries is None else sums.shape[2] - queries
    return (sums[:, :, None] - sums[:, :, first:, None]).clamp(max=0)


def gated_products(q: Tensor, k: Tensor, sums: Tensor) -> Tensor:
    """Return sum_c q_ic k_jc exp(D_jc - D_ic): (batch, heads, queries, keys); all have the same heads and length.

    A few queries at a time, because every pair has an exponent for each channel; a traced graph, which a loop would tie
    to one length, takes all at once.
    """

    def products(now: slice) -> Tensor:
        factors = (sums[:, :, None] - sums[:, :, now, None]).clamp(max=0).to(k.dtype).exp()
        return ((k[:, :, None] * factors) @ q[:, :, now, :, None]).squeeze(-1)

    if torch.compiler.is_compiling():
        return products(slice(None))
    return torch.cat([products(slice(first, first + 16)) for first in range(0, max(q.shape[2], 1), 16)], 2)


def document_index(starts: Tensor) -> Tensor:
    """Return the index of each token's document, counted from the first token: (batch, keys)."""
    return starts.long().cumsum(-1)
