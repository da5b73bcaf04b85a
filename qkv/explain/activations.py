"""One forward pass of a model, recorded at every attention site: encoder, decoder and cross-attention.

    observe(model, source, target)[site].head(2).weights()      the matrix of head 2 at that site

Only q, k and v are kept, which are linear in length; a matrix is computed when `weights` is called.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from qkv.attention import Attention
from qkv.data import Vocabulary
from qkv.explain.alignment import check_ids, eval_mode
from qkv.explain.record_calls import AttentionCall, record_calls
from qkv.layers import DecoderBlock, EncoderBlock
from qkv.models import Decoder, Encoder, EncoderDecoder, Recurrent


@dataclass(frozen=True)
class AttentionSite:
    """One attention module of a model."""

    name: str
    """Such as "encoder 1", "decoder 2" or "cross 2"."""
    rows: str
    """Sequence of the queries: "source", "target", or "generated": the target shifted by one, up to END."""
    columns: str
    """Sequence of the keys: "source" or "target"."""
    attention: Attention
    positions: str = "none"
    """Position scheme of its heads; a scheme that adds to the model's input is not visible here."""
    rotates: bool = False
    """Whether the scheme rotates queries and keys, as RoPE does."""


@dataclass(frozen=True)
class AttentionRecord:
    """One attention site in one forward pass over one sequence."""

    site: AttentionSite
    call: AttentionCall

    @property
    def heads(self) -> int:
        """Number of query heads."""
        return self.call.q.shape[1]

    def head(self, index: int) -> AttentionCall:
        """Return the call with the inputs and options of this head only."""
        if not 0 <= index < self.heads:
            raise ValueError(f"head must be from 0 to {self.heads - 1}, got {index}")
        call = self.call
        key_index = index * call.k.shape[1] // self.heads
        own, keys = slice(index, index + 1), slice(key_index, key_index + 1)
        options = {name: _select_head(name, value, index, self.heads) for name, value in call.options.items()}
        return replace(
            call,
            q=call.q[:, own],
            k=call.k[:, keys],
            v=call.v[:, keys],
            options=options,
            output=call.output[:, own],
        )


def attention_sites(model: nn.Module) -> list[AttentionSite]:
    """Return every attention site of this model, in the order of its blocks."""
    if isinstance(model, Decoder):
        return [_self_attention("layer", n, "target", block) for n, block in enumerate(model.blocks, 1)]
    if isinstance(model, Encoder):
        return [_self_attention("layer", n, "source", block) for n, block in enumerate(model.blocks, 1)]
    if isinstance(model, EncoderDecoder):
        encoder = [_self_attention("encoder", n, "source", block) for n, block in enumerate(model.encoder, 1)]
        decoder = [_self_attention("decoder", n, "target", block) for n, block in enumerate(model.decoder, 1)]
        return [*encoder, *decoder, *_cross_attention(model)]
    if isinstance(model, Recurrent):
        return [] if model.attention is None else [AttentionSite("cross 1", "generated", "source", model.attention)]
    raise TypeError(f"model must be a Decoder, Encoder, EncoderDecoder or Recurrent, got a {type(model).__name__}")


def observe(model: nn.Module, source: Sequence[int], target: Sequence[int] | None = None) -> list[AttentionRecord]:
    """Record each attention site while the model reads `source` and is fed `target`; ids without START and END.

    A Decoder or an Encoder has one sequence, `source`. The target need not be the model's own answer.
    """
    sites = attention_sites(model)
    if not source:
        raise ValueError("source must have at least one token, got 0")
    device = next(model.parameters()).device
    inputs = [torch.tensor([source], device=device)]
    if isinstance(model, Decoder | Encoder):
        check_ids("source", source, model.embed)
    else:
        check_ids("source", source, model.source_embedding)
        check_ids("target", target or (), model.target_embedding)
        inputs.append(torch.tensor([[Vocabulary.START, *(target or ())]], device=device))
    with torch.no_grad(), eval_mode(model), record_calls([site.attention for site in sites]) as calls:
        model(*inputs)
    records = []
    for site in sites:
        own = [call for call in calls if call.attention is site.attention]
        records.append(AttentionRecord(site, _join_calls(own)))
    return records


def _self_attention(stack: str, number: int, side: str, block: nn.Module) -> AttentionSite:
    """Return the self-attention site of one block."""
    assert isinstance(block, EncoderBlock | DecoderBlock)
    heads = block.attention
    name = f"{stack} {number}"
    if heads.positions is None:
        return AttentionSite(name, side, side, heads.attention)
    rotates = heads.positions.role_for(heads.attention.accepts) == "rotation"
    return AttentionSite(name, side, side, heads.attention, heads.positions.kind, rotates)


def _cross_attention(model: EncoderDecoder) -> list[AttentionSite]:
    crosses = [block.cross for block in model.decoder if isinstance(block, DecoderBlock)]
    return [
        AttentionSite(f"cross {n}", "generated", "source", cross.attention)
        for n, cross in enumerate(crosses, 1)
        if cross is not None
    ]


def _join_calls(calls: list[AttentionCall]) -> AttentionCall:
    """Join the calls of a recurrent decoder, which attends once per token to the same source."""
    first = calls[0]
    if len(calls) == 1:
        return first
    return replace(
        first, q=torch.cat([call.q for call in calls], 2), output=torch.cat([call.output for call in calls], 2)
    )


def _select_head(name: str, value: Any, index: int, heads: int) -> Any:
    """Return the part of an option that this head sees; a gate may have fewer heads, as keys may."""
    if not isinstance(value, Tensor):
        return value
    if name == "decay" and value.dim() == 1:
        return value[index : index + 1]
    if value.dim() == 2:  # a padding mask, or starts
        return value
    own = index * value.shape[1] // heads  # 0 for a mask or bias of all heads
    return value[:, own : own + 1]
