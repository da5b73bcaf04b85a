"""The attention function that `transformers` calls in every layer, computed by a qkv kind.

It is given queries and all keys, cached ones first: (batch, heads, time, dim), with fewer key heads for grouped
queries, positions already applied. So the state of a linear kind is rebuilt at each call: the result is right, but the
cost per token still grows with the length. `qkv.models.Decoder` keeps the state.
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

UNSUPPORTED_OPTIONS = ("softcap", "s_aux", "position_bias", "sliding_window", "cache")
"""Arguments of some models that no qkv kind supports."""


def make_attention_function(text: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """Return the attention function to register with `transformers` for a kind such as taylor or taylor(order=4)."""
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
        """Return (batch, queries, heads, dim), and the attention weights if `output_attentions` is set."""
        _require_supported(name, dropout, rest)
        causal = _is_causal(module, rest.get("is_causal"))
        _require_no_restarts(name, module, attention_mask, causal, rest.get("position_ids"))
        mechanism = _mechanism(text, query.shape[-1], scaling, module.training)
        query, key, value = (_autocast(x) for x in (query, key, value))
        needs_weights = bool(rest.get("output_attentions"))
        if attention_mask is not None and attention_mask.dim() == 2:
            length = attention_mask.shape[1]  # a cache may have spare capacity
            key, value = key[:, :, :length], value[:, :, :length]
        if attention_mask is not None and attention_mask.dtype == torch.int64:
            if needs_weights:
                raise ValueError(f"attn_implementation={name!r} returns no attention weights for packed rows")
            _require_no_gates(name, rest, "packed rows")
            return _attend_packed(mechanism, query, key, value, attention_mask).transpose(1, 2).contiguous(), None
        gates = _gates(name, rest, query, key, causal=causal, mask=attention_mask)
        run = partial(_run, query=query, key=key, causal=causal, mask=attention_mask, mechanism=mechanism)
        out = run(lambda q, **options: mechanism(q, key, value, **options, **gates))
        weights = run(lambda q, **options: mechanism.weights(q, key, **options, **gates)) if needs_weights else None
        return out.transpose(1, 2).contiguous(), weights

    return attend


AUTOCAST_DEVICES = ("cuda",)
"""Devices on which autocast applies to attention; a CPU may crash in half-precision products."""


def _autocast(x: Tensor) -> Tensor:
    """Cast like torch's own attention: rotary tables are float32, and so are the q and k that they rotate."""
    kind = x.device.type
    if kind not in AUTOCAST_DEVICES or x.dtype != torch.float32 or not torch.is_autocast_enabled(kind):
        return x
    return x.to(torch.get_autocast_dtype(kind))


def _require_supported(name: str, dropout: float, rest: dict[str, Any]) -> None:
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS  # noqa: PLC0415

    if name not in ALL_MASK_ATTENTION_FUNCTIONS:
        raise ValueError(
            f"attn_implementation={name!r} has no mask function, so padding would be visible; "
            "qkv.interop.register_attention() registers both"
        )
    if dropout > 0:
        raise ValueError(
            f"attn_implementation={name!r} does not support dropout of attention weights, but this model has "
            f"dropout={dropout} in training; load it with attention_probs_dropout_prob=0.0 (BERT), "
            "attention_dropout=0.0 (Llama) or attn_pdrop=0.0 (GPT-2)"
        )
    for option in UNSUPPORTED_OPTIONS:
        if rest.get(option) is not None:
            raise ValueError(
                f"attn_implementation={name!r} does not support {option}, which this model needs; use sdpa"
            )


GATES = ("decay", "beta", "starts")
"""Arguments of our kinds that no model of `transformers` passes by itself; a module of your own may."""


def _gates(
    name: str, rest: dict[str, Any], query: Tensor, key: Tensor, *, causal: bool, mask: Tensor | None
) -> dict[str, Any]:
    """Return the gates of a call, which must be of whole causal sequences."""
    if not causal:
        _require_no_gates(name, rest, "attention that is not causal")
    if query.shape[2] != key.shape[2]:
        _require_no_gates(name, rest, f"{query.shape[2]} queries after a cache of {key.shape[2]} keys")
    if mask is not None and mask.dim() == 4:
        _require_no_gates(name, rest, "a 4D mask")
    return {option: rest[option] for option in GATES if rest.get(option) is not None}


def _require_no_gates(name: str, rest: dict[str, Any], what: str) -> None:
    for option in GATES:
        if rest.get(option) is not None:
            raise ValueError(
                f"attn_implementation={name!r} does not support {option} with {what}; "
                "call qkv.attention, whose step() takes it"
            )


def _is_causal(module: nn.Module, given: bool | None) -> bool:
    """Return `is_causal` of the call; if None, True unless the layer or its config has is_causal=False."""
    if given is not None:
        return given
    config = getattr(module, "config", None)
    return bool(getattr(module, "is_causal", True)) and getattr(config, "is_causal", True) is not False


def _require_no_restarts(
    name: str, module: nn.Module, mask: Tensor | None, causal: bool, position_ids: Tensor | None
) -> None:
    """Raise for packed rows that no mask separates; checked once per forward pass, in the first layer."""
    if position_ids is None or position_ids.dim() != 2 or getattr(module, "layer_idx", None):
        return
    again = position_ids[:, 1:] <= position_ids[:, :-1]
    if mask is not None:
        if mask.shape[1:] != position_ids.shape[1:] or mask.dtype != torch.bool:
            return
        again = again & mask[:, 1:] & mask[:, :-1]  # positions of padding are arbitrary
    if bool(again.any()):
        how = "pass attention_mask=None and use_cache=False" if causal else "give each document its own row"
        raise ValueError(
            f"attn_implementation={name!r}: position_ids start again inside a row, so it holds several documents, "
            f"but no mask separates them; {how}"
        )


@lru_cache(maxsize=64)
def _mechanism(text: str, key_dim: int, scaling: float | None, training: bool) -> Attention:
    """Return the kind, with its scale times the ratio of the model's scaling to the usual key_dim^-0.5.

    Training and evaluation have separate instances, since a cached one is shared by all models.
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


def _run(
    compute: Callable[..., Tensor], query: Tensor, key: Tensor, causal: bool, mask: Tensor | None, mechanism: Attention
) -> Tensor:
    """Call `compute` with the mask in the form that it takes.

    With fewer queries than keys, causal queries belong to the last keys. A 4-dimensional mask includes the causal one.
    """
    if mask is not None and mask.dim() == 4:
        if mask.dtype == torch.bool:
            return compute(query, mask=mask)
        return compute(query, bias=mask.expand(-1, query.shape[1], -1, -1))
    queries, keys = query.shape[2], key.shape[2]
    if not causal or queries == keys:
        return compute(query, causal=causal, mask=mask)
    if queries == 1:
        return compute(query, mask=mask)
    if "pairs" in mechanism.accepts:
        return compute(query, mask=visibility_mask(queries, keys, causal=True, mask=mask, device=query.device))
    # pad with empty queries: a recurrent form starts at the first key
    past = keys - queries
    return compute(functional.pad(query, (0, 0, past, 0)), causal=True, mask=mask)[:, :, past:]


def _attend_packed(mechanism: Attention, query: Tensor, key: Tensor, value: Tensor, documents: Tensor) -> Tensor:
    """Return causal attention within each document: each becomes its own row, padded at the end."""
    rows, positions, inside = _document_rows(documents)

    def spread(x: Tensor) -> Tensor:
        return x[rows, :, positions].transpose(1, 2)  # [documents, heads, longest, dim]

    out = mechanism(spread(query), spread(key), spread(value), causal=True, mask=inside)
    joined = out.new_empty(*query.shape[:3], out.shape[-1])
    joined[rows[inside], :, positions[inside]] = out.transpose(1, 2)[inside]
    return joined


def _document_rows(documents: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return, for each document and position in it, the row and position of its token, and whether there is one."""
    batch, length = documents.shape
    starts = functional.pad(documents[:, 1:] != documents[:, :-1], (1, 0), value=True).flatten()
    first = starts.nonzero()[:, 0]
    sizes = torch.diff(first, append=first.new_tensor([batch * length]))
    offset = torch.arange(int(sizes.max()), device=documents.device)
    inside = offset < sizes[:, None]
    token = torch.where(inside, first[:, None] + offset, first[:, None])
    return token // length, token % length, inside
