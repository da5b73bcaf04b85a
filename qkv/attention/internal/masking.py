"""Masking rules, shared by the definition, the fast forms and `step`."""

import torch
from torch import Tensor


def visibility_mask(
    queries: int,
    keys: int,
    *,
    causal: bool,
    window: int | None = None,
    mask: Tensor | None = None,
    documents: Tensor | None = None,
    device: torch.device,
) -> Tensor | None:
    """Return True where a query may attend to a key: (batch or 1, heads or 1, queries, keys); None if everywhere.

    Causal queries are aligned with the last keys: query i has position keys - queries + i and sees
    the `window` keys up to its own position, of its own document: `documents` (batch, keys) has the index of each.
    """
    seen = None
    if causal and not (queries == 1 and window is None):
        position = torch.arange(keys - queries, keys, device=device)[:, None]
        key = torch.arange(keys, device=device)
        seen = key <= position
        if window is not None:
            seen &= key > position - window
        seen = seen[None, None]  # batch heads queries keys
    if mask is not None:
        pairs = mask[:, None, None, :] if mask.dim() == 2 else mask
        seen = pairs if seen is None else seen & pairs
    if documents is not None:
        same = documents[:, None, keys - queries :, None] == documents[:, None, None, :]
        seen = same if seen is None else seen & same
    return seen


def zero_hidden(x: Tensor, mask: Tensor | None) -> Tensor:
    """Zero the keys or values that `mask` hides from every query; `mask` is (batch, keys) or a mask of pairs.

    A hidden key must have no influence even if it holds NaN or inf, and 0 * NaN is NaN.
    """
    return x if mask is None else x.masked_fill(hidden_keys(mask), 0)


def zero_hidden_pair(k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Apply `zero_hidden` to keys and values, reducing the mask once."""
    if mask is None:
        return k, v
    hidden = hidden_keys(mask)
    return k.masked_fill(hidden, 0), v.masked_fill(hidden, 0)


def hidden_keys(mask: Tensor) -> Tensor:
    """Return which keys no query may attend to: bool (batch, 1, keys, 1)."""
    seen = mask if mask.dim() == 2 else mask.any(-2).any(1)  # batch keys
    return ~seen[:, None, :, None]


MIN_WEIGHT_SUM = 1e-36
"""Smallest sum of weights that is divided by; below it a query counts as seeing no key. The backward of a smaller one
would overflow float32. Decay over a padded end reaches it; the smallest weight of elu, exp(-80), is above it."""


def safe_divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Divide, with 0 where |denominator| < MIN_WEIGHT_SUM: a query that sees no key gets zeros, not NaN."""
    return numerator / denominator.masked_fill(denominator.abs() < MIN_WEIGHT_SUM, torch.inf)
