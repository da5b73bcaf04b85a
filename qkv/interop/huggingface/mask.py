"""The mask function that `transformers` calls once per forward pass, before the layers.

It is given a rule for pairs of tokens. qkv kinds need less: a (batch, keys) padding mask, or for packed rows the
document of each token. Any other rule raises, since a kind that never builds the matrix of pairs would silently ignore
it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

QUERY_BLOCK = 256
"""Queries per evaluation of the rule: the whole matrix is never in memory."""


def make_mask_function(name: str) -> Callable[..., Tensor | None]:
    """Return the mask function to register with `transformers` under this name."""

    def mask(
        batch_size: int,
        q_length: int,
        kv_length: int,
        q_offset: int | Tensor = 0,
        mask_function: Any = None,
        attention_mask: Tensor | None = None,
        **rest: Any,
    ) -> Tensor | None:
        """Return None without padding, a bool padding mask (batch, keys), or integer document ids (batch, keys)."""
        _require_no_window(name, rest.get("local_size"))
        from transformers.masking_utils import bidirectional_mask_function, causal_mask_function  # noqa: PLC0415

        if mask_function is bidirectional_mask_function:
            return _padding(attention_mask, kv_length, None)
        seen = int(q_offset) + q_length
        if mask_function in (None, causal_mask_function):
            if attention_mask is None and seen < kv_length:  # a cache with room for more
                attention_mask = torch.ones(batch_size, seen, dtype=torch.bool, device=rest.get("device"))
            return _padding(attention_mask, kv_length, seen)
        documents = None
        if attention_mask is None and q_length == kv_length and not rest.get("use_vmap"):
            documents = _documents(mask_function, batch_size, q_length, rest.get("device"))
        if documents is None:
            raise ValueError(
                f"attn_implementation={name!r} supports causal and bidirectional attention, padding and packed rows, "
                "but this model needs another pattern of pairs (a prefix, image tokens or blocks); use sdpa"
            )
        return documents

    return mask


def _require_no_window(name: str, window: int | None) -> None:
    if window is not None:
        raise ValueError(
            f"attn_implementation={name!r} attends to all earlier tokens, but this model has layers that "
            f"attend to only {window} (a sliding window or chunks); load it with sliding_window=None, or use sdpa"
        )


def _padding(given: Tensor | None, keys: int, seen: int | None) -> Tensor | None:
    """Return the padding mask of the present keys, or None without padding."""
    if given is None:
        return None
    given = given[:, -keys:] if seen is None else given[:, -keys:][:, :seen]
    return None if given.shape[1] == keys and bool(given.all()) else given


def _documents(
    rule: Callable[..., Tensor], batch: int, length: int, device: torch.device | str | None
) -> Tensor | None:
    """Return the document of each token (batch, keys) if the rule is causal within documents, else None.

    A document starts where a token does not attend to the one before it.
    """
    row = torch.arange(batch, device=device)
    position = torch.arange(length, device=device)
    apart = ~rule(row[:, None], torch.zeros_like(row)[:, None], position[None, 1:], position[None, :-1])
    documents = torch.cat((torch.zeros_like(row)[:, None], apart.cumsum(1).expand(batch, -1)), 1)
    for query in position.split(QUERY_BLOCK):
        allowed = rule(row[:, None, None], torch.zeros_like(row)[:, None, None], query[None, :, None], position)
        causal = position <= query[:, None]
        if not torch.equal(allowed, (documents[:, query, None] == documents[:, None]) & causal):
            return None
    return documents
