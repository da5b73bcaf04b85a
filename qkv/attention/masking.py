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
    if mask is None:
        return x
    seen = mask if mask.dim() == 2 else mask.any(-2).any(1)  # batch keys
    return x.masked_fill(~seen[:, None, :, None], 0)


def safe_divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Zero where the denominator is zero: a query that sees no key gets zeros, not NaN."""
    return numerator / denominator.masked_fill(denominator == 0, 1)
