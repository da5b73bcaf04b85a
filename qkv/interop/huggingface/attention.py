"""What `transformers` calls in every layer, answered by an attention kind of ours.

It hands over queries and all keys, those of a cache before the new ones: (batch, heads, time, dim), keys in fewer
heads where they are grouped, places told already. So the memory of a linear kind is built anew at each call: the
result is right, the cost of a token still grows with the length. `qkv.models.Decoder` keeps the memory.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from math import isclose
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from qkv.attention import Attention, parse
from qkv.attention.internal.masking import visibility_mask
from qkv.interop.huggingface.files import PREFIX

UNKNOWN = ("softcap", "s_aux", "position_bias", "sliding_window", "cache")
"""What some models hand over, and no kind of ours takes in this way."""


def attend_for(text: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """The attention function to register with `transformers` for this kind, such as taylor or taylor(order=4)."""
    name = PREFIX + text

    def attend(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        **rest: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """(batch, queries, heads, dim), and the matrix of weights if it is asked for."""
        _refuse(name, dropout, rest)
        causal = _is_causal(module, rest.get("is_causal"))
        _refuse_restarts(name, module, attention_mask, causal, rest.get("position_ids"))
        mechanism = _mechanism(text, query.shape[-1], scaling, module.training)
        query, key, value = (_as_autocast_has_it(x) for x in (query, key, value))
        wanted = bool(rest.get("output_attentions"))
        if attention_mask is not None and attention_mask.dim() == 2:
            seen = attention_mask.shape[1]  # a cache may have room for more
            key, value = key[:, :, :seen], value[:, :, :seen]
        if attention_mask is not None and attention_mask.dtype == torch.int64:
            if wanted:
                raise ValueError(f"attn_implementation={name!r} gives no matrix of weights for packed rows")
            return _apart(mechanism, query, key, value, attention_mask).transpose(1, 2).contiguous(), None
        whole = partial(_whole, query=query, key=key, causal=causal, mask=attention_mask, mechanism=mechanism)
        out = whole(lambda q, **options: mechanism(q, key, value, **options))
        weights = whole(lambda q, **options: mechanism.weights(q, key, **options)) if wanted else None
        return out.transpose(1, 2).contiguous(), weights

    return attend


NARROWED = ("cuda",)
"""Devices on which autocast narrows what attention is given; a CPU may fault in half-precision products."""


def _as_autocast_has_it(x: Tensor) -> Tensor:
    """What torch's own attention would make of it: a model's rotary tables are float32, and so is what they turn."""
    kind = x.device.type
    if kind not in NARROWED or x.dtype != torch.float32 or not torch.is_autocast_enabled(kind):
        return x
    return x.to(torch.get_autocast_dtype(kind))


def _refuse(name: str, dropout: float, rest: dict[str, Any]) -> None:
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS  # noqa: PLC0415

    if name not in ALL_MASK_ATTENTION_FUNCTIONS:
        raise ValueError(
            f"attn_implementation={name!r} has no mask function, so padding would be seen; "
            "qkv.interop.huggingface.register.register() registers both"
        )
    if dropout > 0:
        raise ValueError(
            f"attn_implementation={name!r} takes no dropout from the model, but this one asks for dropout={dropout} "
            "of attention weights in training; load it with attention_probs_dropout_prob=0.0 (BERT), "
            "attention_dropout=0.0 (Llama) or attn_pdrop=0.0 (GPT-2)"
        )
    for option in UNKNOWN:
        if rest.get(option) is not None:
            raise ValueError(f"attn_implementation={name!r} cannot take {option}, which this model needs; use sdpa")


def _is_causal(module: nn.Module, given: bool | None) -> bool:
    """What the call says, else the layer; a config can make a causal model bidirectional."""
    if given is not None:
        return given
    config = getattr(module, "config", None)
    return bool(getattr(module, "is_causal", True)) and getattr(config, "is_causal", True) is not False


def _refuse_restarts(
    name: str, module: nn.Module, mask: Tensor | None, causal: bool, position_ids: Tensor | None
) -> None:
    """Packed rows that the mask does not tell apart: looked for once a call of the model, in its first layer."""
    if position_ids is None or position_ids.dim() != 2 or getattr(module, "layer_idx", None):
        return
    again = position_ids[:, 1:] <= position_ids[:, :-1]
    if mask is not None:
        if mask.shape[1:] != position_ids.shape[1:] or mask.dtype != torch.bool:
            return
        again = again & mask[:, 1:] & mask[:, :-1]  # places of padding mean nothing
    if bool(again.any()):
        how = "pass attention_mask=None and use_cache=False" if causal else "give each document a row of its own"
        raise ValueError(
            f"attn_implementation={name!r}: position_ids start again inside a row, so it holds several documents, "
            f"but nothing keeps them apart; {how}"
        )


@lru_cache(maxsize=64)
def _mechanism(text: str, key_dim: int, scaling: float | None, training: bool) -> Attention:
    """The kind with its own scale, times what the model departs from the usual key_dim^-0.5.

    One for training and one for evaluation: models in either mode share them, and none may switch another's dropout.
    """
    mechanism: Any = parse(text).train(training)
    usual = key_dim**-0.5
    if scaling is None or isclose(scaling, usual, rel_tol=1e-6):
        return mechanism
    own = mechanism.scale
    if own is None:
        own = mechanism.default_scale(key_dim) if hasattr(mechanism, "default_scale") else usual
    mechanism.scale = own * scaling / usual
    return mechanism


def _whole(
    run: Callable[..., Tensor], query: Tensor, key: Tensor, causal: bool, mask: Tensor | None, mechanism: Attention
) -> Tensor:
    """`run` for queries that are the last of the keys if causal; a mask of pairs is the whole truth by itself."""
    if mask is not None and mask.dim() == 4:
        if mask.dtype == torch.bool:
            return run(query, mask=mask)
        return run(query, bias=mask.expand(-1, query.shape[1], -1, -1))
    queries, keys = query.shape[2], key.shape[2]
    if not causal or queries == keys:
        return run(query, causal=causal, mask=mask)
    if queries == 1:
        return run(query, mask=mask)
    if "pairs" in mechanism.accepts:
        return run(query, mask=visibility_mask(queries, keys, causal=True, mask=mask, device=query.device))
    # empty queries before: a kind that folds the past has no other way to ask from its middle
    past = keys - queries
    return run(functional.pad(query, (0, 0, past, 0)), causal=True, mask=mask)[:, :, past:]


def _apart(mechanism: Attention, query: Tensor, key: Tensor, value: Tensor, documents: Tensor) -> Tensor:
    """Causal attention inside each document: every document becomes a row of its own, padded at its end."""
    rows, places, inside = _as_rows(documents)

    def spread(x: Tensor) -> Tensor:
        return x[rows, :, places].transpose(1, 2)  # documents heads longest dim

    out = mechanism(spread(query), spread(key), spread(value), causal=True, mask=inside)
    joined = out.new_empty(*query.shape[:3], out.shape[-1])
    joined[rows[inside], :, places[inside]] = out.transpose(1, 2)[inside]
    return joined


def _as_rows(documents: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For each document and place in it: the row and the place where its token stands, and whether there is one."""
    batch, length = documents.shape
    starts = functional.pad(documents[:, 1:] != documents[:, :-1], (1, 0), value=True).flatten()
    first = starts.nonzero()[:, 0]
    sizes = torch.diff(first, append=first.new_tensor([batch * length]))
    offset = torch.arange(int(sizes.max()), device=documents.device)
    inside = offset < sizes[:, None]
    token = torch.where(inside, first[:, None] + offset, first[:, None])
    return token // length, token % length, inside
