"""One pass of a model, seen at every place where it attends: encoder, decoder, and from one to the other.

    observe(model, source, target)[place].head(2).weights()      the matrix of head 2 at that place

Only q, k and v of the pass are kept, which are linear in length; a matrix is computed when it is asked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from qkv.attention import Attention
from qkv.data import Vocabulary
from qkv.explain.alignment import check_ids, evaluating
from qkv.explain.record_calls import Call, watch
from qkv.layers import DecoderBlock, EncoderBlock
from qkv.models import Decoder, Encoder, EncoderDecoder, Recurrent


@dataclass(frozen=True)
class Site:
    """A place in a model where it attends."""

    name: str
    """Such as "encoder 1", "decoder 2" or "cross 2"."""
    rows: str
    """Whose tokens ask: "source", "target", or "written": the target shifted, each with the END that follows."""
    columns: str
    """Whose tokens are looked at: "source" or "target"."""
    attention: Attention
    positions: str = "none"
    """The scheme that its heads are told places by; one that is added to the model's input is not known here."""


@dataclass(frozen=True)
class Look:
    """What happened at one place in one pass over one sequence."""

    site: Site
    call: Call

    @property
    def heads(self) -> int:
        """Query heads."""
        return self.call.q.shape[1]

    def head(self, number: int) -> Call:
        """The same call as this head alone saw it."""
        if not 0 <= number < self.heads:
            raise ValueError(f"head must be from 0 to {self.heads - 1}, got {number}")
        call = self.call
        shared = number * call.k.shape[1] // self.heads
        own, other = slice(number, number + 1), slice(shared, shared + 1)
        options = {name: _of_head(name, value, own) for name, value in call.options.items()}
        return replace(
            call,
            q=call.q[:, own],
            k=call.k[:, other],
            v=call.v[:, other],
            options=options,
            output=call.output[:, own],
        )


def sites(model: nn.Module) -> list[Site]:
    """Every place where this model attends, in the order of its blocks."""
    if isinstance(model, Decoder):
        return [_within("layer", n, "target", block) for n, block in enumerate(model.blocks, 1)]
    if isinstance(model, Encoder):
        return [_within("layer", n, "source", block) for n, block in enumerate(model.blocks, 1)]
    if isinstance(model, EncoderDecoder):
        reading = [_within("encoder", n, "source", block) for n, block in enumerate(model.encoder, 1)]
        writing = [_within("decoder", n, "target", block) for n, block in enumerate(model.decoder, 1)]
        return [*reading, *writing, *_crossings(model)]
    if isinstance(model, Recurrent):
        return [] if model.attention is None else [Site("cross 1", "written", "source", model.attention)]
    raise TypeError(f"model must be a Decoder, Encoder, EncoderDecoder or Recurrent, got a {type(model).__name__}")


def observe(model: nn.Module, source: Sequence[int], target: Sequence[int] | None = None) -> list[Look]:
    """What each place of the model does while it reads `source` and writes `target` and END; ids without START.

    A Decoder or an Encoder has one sequence, `source`. The model need not agree with the target: any answer can be
    asked about.
    """
    places = sites(model)
    if not source:
        raise ValueError("source must have at least one token, got none; there is nothing to look at")
    device = next(model.parameters()).device
    given = [torch.tensor([source], device=device)]
    if isinstance(model, Decoder | Encoder):
        check_ids("source", source, model.embed)
    else:
        check_ids("source", source, model.read)
        check_ids("target", target or (), model.write)
        given.append(torch.tensor([[Vocabulary.START, *(target or ())]], device=device))
    with torch.no_grad(), evaluating(model), watch([place.attention for place in places]) as calls:
        model(*given)
    return [Look(place, _joined([call for call in calls if call.attention is place.attention])) for place in places]


def _within(stack: str, number: int, side: str, block: nn.Module) -> Site:
    """Self-attention of one block."""
    assert isinstance(block, EncoderBlock | DecoderBlock)
    heads = block.attention
    positions = "none" if heads.positions is None else heads.positions.kind
    return Site(f"{stack} {number}", side, side, heads.attention, positions)


def _crossings(model: EncoderDecoder) -> list[Site]:
    crosses = [block.cross for block in model.decoder if isinstance(block, DecoderBlock)]
    return [
        Site(f"cross {n}", "written", "source", cross.attention)
        for n, cross in enumerate(crosses, 1)
        if cross is not None
    ]


def _joined(calls: list[Call]) -> Call:
    """A recurrent decoder looks once a token, always at the same source: its looks as one."""
    first = calls[0]
    if len(calls) == 1:
        return first
    return replace(
        first, q=torch.cat([call.q for call in calls], 2), output=torch.cat([call.output for call in calls], 2)
    )


def _of_head(name: str, value: Any, own: slice) -> Any:
    if not isinstance(value, Tensor):
        return value
    if name == "decay":
        return value[own]
    # a padding mask, or a mask or bias that all heads share
    return value if value.dim() == 2 or value.shape[1] == 1 else value[:, own]
