"""What `transformers` asks before the layers run: which keys may be seen.

It hands over a rule for pairs of tokens. Our kinds need less: a (batch, keys) padding mask, or for packed rows the
document that each token is in. A rule that is neither is refused, for a kind that never builds the matrix of pairs
would silently break it. Paddings of a whole batch are one answer for all layers.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

BLOCK = 256
"""Queries whose row of the rule is looked at together: the matrix is never whole in memory."""


def mask_for(name: str) -> Callable[..., Tensor | None]:
    """The mask function to register with `transformers` under this name."""

    def mask(
        batch_size: int,
        q_length: int,
        kv_length: int,
        q_offset: int | Tensor = 0,
        mask_function: Any = None,
        attention_mask: Tensor | None = None,
        **rest: Any,
    ) -> Tensor | None:
        """None if nothing is hidden, bool (batch, keys) padding, or whole numbers (batch, keys): documents."""
        _refuse_window(name, rest.get("local_size"))
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
                f"attn_implementation={name!r} knows causal and bidirectional attention, padding and packed rows, "
                "but this model asks for another pattern of pairs (a prefix, image tokens or blocks); use sdpa for it"
            )
        return documents

    return mask


def _refuse_window(name: str, window: int | None) -> None:
    if window is not None:
        raise ValueError(
            f"attn_implementation={name!r} sees all tokens before its own, but this model has layers that see only "
            f"{window} (a sliding window or chunks); load it with sliding_window=None, or use sdpa"
        )


def _padding(given: Tensor | None, keys: int, seen: int | None) -> Tensor | None:
    """The padding of the keys there are; None if there is none."""
    if given is None:
        return None
    given = given[:, -keys:] if seen is None else given[:, -keys:][:, :seen]
    return None if given.shape[1] == keys and bool(given.all()) else given


def _documents(
    rule: Callable[..., Tensor], batch: int, length: int, device: torch.device | str | None
) -> Tensor | None:
    """The document of each token (batch, keys) if the rule is causal inside documents; None if it is anything else.

    A document begins where a token does not see the one before it.
    """
    row = torch.arange(batch, device=device)
    place = torch.arange(length, device=device)
    apart = ~rule(row[:, None], torch.zeros_like(row)[:, None], place[None, 1:], place[None, :-1])
    documents = torch.cat((torch.zeros_like(row)[:, None], apart.cumsum(1).expand(batch, -1)), 1)
    for query in place.split(BLOCK):
        asked = rule(row[:, None, None], torch.zeros_like(row)[:, None, None], query[None, :, None], place)
        causal = place <= query[:, None]
        if not torch.equal(asked, (documents[:, query, None] == documents[:, None]) & causal):
            return None
    return documents
