"""Who may see whom: one rule for the definition, the fast form and the step."""

import torch
from torch import Tensor


def visible(
    queries: int,
    keys: int,
    *,
    causal: bool,
    window: int | None = None,
    mask: Tensor | None = None,
    device: torch.device,
) -> Tensor | None:
    """True where a query may see a key: (batch or 1, heads or 1, queries, keys); None if everywhere.

    Causal queries are the last of the keys: query i stands at position keys - queries + i and sees
    the `window` keys up to its own.
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
    return seen


def blank(x: Tensor, mask: Tensor | None) -> Tensor:
    """Zeros where a (batch, keys) mask, or a pair mask for all queries, hides a key.

    A hidden key must have no influence even if it holds NaN or inf, and 0 * NaN is NaN.
    """
    return x if mask is None else x.masked_fill(_hidden(mask), 0)


def blank_both(k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """`blank` of keys and values, who is hidden being found out once."""
    if mask is None:
        return k, v
    hidden = _hidden(mask)
    return k.masked_fill(hidden, 0), v.masked_fill(hidden, 0)


def _hidden(mask: Tensor) -> Tensor:
    seen = mask if mask.dim() == 2 else mask.any(-2).any(1)  # batch keys
    return ~seen[:, None, :, None]


NOTHING = 1e-36
"""A sum of weights below which a query sees nothing: its inverse, times what a backward multiplies it with, would leave
the range of float32. Decay fades to it over a padded end; what elu makes of the lowest scores, exp(-80), is above."""


def safe_divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Zero where the denominator is as good as zero: a query that sees no key gets zeros, not NaN."""
    return numerator / denominator.masked_fill(denominator.abs() < NOTHING, torch.inf)
