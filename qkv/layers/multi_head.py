"""Multi-head attention: project, split into heads, attend, join.

    MultiHead(512, 8, Taylor(order=2), Rope())        any mechanism, any position scheme that serves it

The mechanism, the positions and the gates are passed in; an impossible pair raises here. With `Delta` and every part it
is the layer of Gated DeltaNet:

    q, k, v = silu(convolve(project x))             ProjectionConvolution
    decay, beta = forget x, write x                 ForgetGate, WriteGate
    y = output(norm(attention(q, k, v)) * gate x)   nn.RMSNorm, OutputGate
"""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from qkv.attention import Attention, Scored
from qkv.attention.internal.validation import Modifiers
from qkv.attention.parallel.group import SequencePart
from qkv.attention.parallel.part import attend_part
from qkv.cost import Cost, Shape, Span, linear, parameters_only
from qkv.layers.convolution import ProjectionConvolution, ShortConvolution
from qkv.layers.gates import Gates
from qkv.layers.heads import Context, Heads, HeadsState
from qkv.layers.packing import Packing
from qkv.layers.projections import (
    Projections,
    cast_for_autocast,
    mix_projections,
    reference_parameter,
    split_heads,
    split_like,
)
from qkv.layers.undo_log import Convolved, UndoLog
from qkv.positions import Positions, incompatible_error
from qkv.shapes import Bias, Hidden, Keys, Mask, Outputs, Queries, Rows, Values

Given = dict[str, Tensor]
"""Arguments of a mechanism by name: bias, decay, beta, starts."""


class MultiHead(nn.Module):
    """Multi-head attention between linear projections.

    `convolution` mixes each token with its neighbors: a `ShortConvolution` before the projections, or a
    `ProjectionConvolution` after them. `output_norm`, such as `nn.RMSNorm(value_dim)`, normalizes the output of each
    head. Linear kinds need both to learn recall. `gates` read what the projections read.
    """

    def __init__(
        self,
        dim: int,
        heads: int | Heads,
        attention: Attention,
        positions: Positions | None = None,
        *,
        convolution: ShortConvolution | ProjectionConvolution | None = None,
        output_norm: nn.Module | None = None,
        gates: Gates | None = None,
        bias: bool = True,
    ):
        super().__init__()
        if not isinstance(attention, Attention):
            raise TypeError(
                f"attention must be a mechanism, such as Softmax() or qkv.attention.build('softmax'), got {attention!r}"
            )
        shape = heads if isinstance(heads, Heads) else Heads(heads)
        self.heads, self.key_heads, self.key_dim, self.value_dim = shape.resolve(dim)
        self.position_role = _position_role(positions, attention)
        self.dim = dim
        self.attention = attention
        self.positions = positions
        after = isinstance(convolution, ProjectionConvolution)
        self.convolution = None if after else convolution
        self.projection_convolution = convolution if after else None
        self.output_norm = output_norm
        self.gates = gates
        self._check_parts()
        self.query = nn.Linear(dim, self.heads * self.key_dim, bias=bias)
        self.key = nn.Linear(dim, self.key_heads * self.key_dim, bias=bias)
        self.value = nn.Linear(dim, self.key_heads * self.value_dim, bias=bias)
        self.output = nn.Linear(self.heads * self.value_dim, dim, bias=bias)

    def forward(
        self,
        x: Hidden,
        *,
        causal: bool = False,
        mask: Mask | None = None,
        packing: Packing | None = None,
        part: SequencePart | None = None,
    ) -> Hidden:
        """Compute self-attention; `mask` (batch, time) hides padding, `packing` restricts attention to documents.

        With `part` all of them are those of one part of each sequence; the other processes have the others.
        """
        self._check_input("x", x)
        if packing is not None and not (causal and mask is None):
            raise ValueError("packing needs causal=True and mask=None: documents are padded at their ends")
        if part is not None:
            return self._forward_part(x, part, packing, mask, causal=causal)
        if packing is not None:
            return self._forward_packed(x, packing)
        if self.convolution is not None:
            x = self.convolution(x, causal=causal, mask=mask)
        projections = self._project(x)
        if self.projection_convolution is not None:
            projections = mix_projections(projections, partial(self.projection_convolution, causal=causal, mask=mask))
        return self._join(self._attend(projections, self._gate(x), causal=causal, mask=mask), x)

    def start(self, batch: int, capacity: int | None = None) -> HeadsState:
        """Return the state before the first token, on the device of this layer."""
        reference = reference_parameter(self.query)
        # every query head with a decay rate of its own needs its own state
        rate_heads = self.heads if self.position_role == "decay" else self.gates.rate_heads if self.gates else 0
        state = self.attention.start(
            batch,
            self.heads,
            self.key_dim,
            self.value_dim,
            key_heads=self.attention.state_heads(self.heads, self.key_heads, rate_heads),
            capacity=capacity,
            dtype=reference.dtype,
            device=reference.device,
        )
        convolution = self.convolution or self.projection_convolution
        return HeadsState(state, None if convolution is None else convolution.start(batch))

    def step(self, x: Hidden, state: HeadsState, *, mask: Mask | None = None) -> tuple[Hidden, HeadsState]:
        """Process the next token or tokens (decode or prefill); equals the causal `forward` over all of them."""
        self._check_input("x", x)
        convolution, convolved = state.convolution, None
        if self.convolution is not None:
            assert convolution is not None
            convolved = Convolved(convolution, x)
            x, convolution = self.convolution.step(x, convolution, mask=mask)
        past, end = state.attention, state.attention.length + x.shape[1]
        index = torch.arange(past.length, end, device=x.device)
        own_index = index if state.offsets is None else self._row_positions(index, state.offsets)
        projections = self._project(x)
        if self.projection_convolution is not None:
            assert convolution is not None
            convolved = Convolved(convolution, torch.cat(projections, -1))
            joined, convolution = self.projection_convolution.step(convolved.new, convolution, mask=mask)
            projections = split_like(joined, projections)
        q, k, v = self._split_and_rotate(projections, own_index)
        key_index = torch.arange(past.length - past.addressable_keys, end, device=x.device)
        modifiers = self._position_modifiers(q, index, key_index) | self._gate(x)
        before = past.preserved() if state.logs and mask is None else None
        out, new = self.attention.step(q, k, v, past, mask=mask, **modifiers)
        following = HeadsState(new, convolution, state.offsets, state.logs)
        if before is not None and following.needs_log:
            log = UndoLog(self.attention, before, q, k, v, modifiers, convolved)
            following = replace(following, log=log)
        return self._join(out, x), following

    def project_context(self, context: Hidden, mask: Mask | None = None) -> Context:
        """Project the keys and values of another sequence, for `cross_attend`."""
        self._check_cross_attention()
        self._check_input("context", context)
        return Context(
            split_heads(self.key(context), self.key_heads), split_heads(self.value(context), self.key_heads), mask
        )

    def cross_attend(self, x: Hidden, context: Context, bias: Bias | None = None) -> Hidden:
        """Compute cross-attention from each token of `x` to the whole context; `bias` is added to the scores."""
        self._check_cross_attention()
        self._check_input("x", x)
        q = split_heads(self.query(x), self.heads)
        return self._join(self.attention(q, context.k, context.v, mask=context.mask, bias=bias), x)

    def cost(self, span: Span) -> Cost:
        """Return the cost of four projections, the mechanism, positions, norms, gates and convolutions.

        With `span.context` it is cross-attention: keys and values come from the other sequence.
        """
        keys = span.time if span.context is None else span.context
        shape = Shape(
            *(span.batch, self.heads, span.time, keys, self.key_dim, self.value_dim, self.key_heads),
            causal=span.causal and span.context is None,
            decay=self.position_role == "decay",
            gate_heads=self.gates.rate_heads if self.gates else 0,
            channel_gate=self.gates is not None and self.gates.per_channel,
            element_bytes=span.element_bytes,
        )
        query_tokens, key_tokens = span.tokens, span.batch * keys
        total = self.attention.cost(shape).within("attention")
        total += linear(self.query, query_tokens).within("query") + linear(self.output, query_tokens).within("output")
        total += linear(self.key, key_tokens).within("key") + linear(self.value, key_tokens).within("value")
        if self.positions is not None:
            total += self.positions.cost(shape).within("positions")
        if self.output_norm is not None:
            total += parameters_only(self.output_norm).within("output_norm")
        for name in ("convolution", "projection_convolution", "gates"):
            part: Any = getattr(self, name)
            total = total if part is None else total + part.cost(span).within(name)
        return total

    def _row_positions(self, index: Tensor, offsets: Rows) -> Tensor:
        """Return the positions (batch, time) of rows that begin at different places."""
        if self.positions is not None and self.position_role == "bias" and not self.positions.relative:
            raise ValueError(
                f"positions {self.positions.kind!r} give a bias of absolute positions, so that rows of different "
                "lengths cannot share a state; decode them one by one"
            )
        return index - offsets.to(index.device)[:, None]

    def _check_input(self, name: str, x: Hidden) -> None:
        if x.dim() != 3 or x.shape[2] != self.dim:
            raise ValueError(f"{name} must have shape (batch, time, dim) = (*, *, {self.dim}), got {tuple(x.shape)}")

    def _check_cross_attention(self) -> None:
        """Raise if a part relates positions within one sequence: cross-attention has two."""
        if self.positions is not None:
            raise ValueError(
                f"positions {self.positions.kind!r} relate tokens of one sequence, but cross-attention has two; "
                "build its MultiHead without positions"
            )
        convolution = self.convolution or self.projection_convolution
        if convolution is not None:
            raise ValueError(
                f"a convolution of width {convolution.width} mixes neighbors of one sequence, but "
                "cross-attention has two; build its MultiHead without convolution"
            )
        if self.gates is not None:
            raise ValueError(
                "gates belong to the tokens of one sequence, but cross-attention has two; "
                "build its MultiHead without gates"
            )

    def _check_parts(self) -> None:
        """Raise if the gates or the convolution after the projections do not fit."""
        channels = self.heads * self.key_dim + self.key_heads * (self.key_dim + self.value_dim)
        if self.projection_convolution is not None and self.projection_convolution.channels != channels:
            raise ValueError(
                f"convolution has channels={self.projection_convolution.channels}, but queries, keys and values have "
                f"{channels} together"
            )
        if self.gates is None:
            return
        if not isinstance(self.gates, Gates):
            raise TypeError(f"gates must be Gates(forget=..., write=..., output=...), got {type(self.gates).__name__}")
        sizes = {"dim": (self.dim,), "query_heads": (self.heads,), "heads": (self.heads, self.key_heads)}
        self.gates.check(self.attention, {**sizes, "key_dim": (self.key_dim,), "value_dim": (self.value_dim,)})
        if self.positions is None or self.gates.forget is None:
            return
        scheme, forget = self.positions.kind, type(self.gates.forget).__name__
        if self.position_role == "decay":  # counts hidden places, too, which a gate does not
            raise ValueError(
                f"positions {scheme!r} fade the past by distance, {forget} by token, and attention kind "
                f"{self.attention.kind!r} takes one of them; use the gate with positions 'rope' or without positions"
            )
        if self.position_role == "rotation" and self.gates.per_channel:
            raise ValueError(
                f"positions {scheme!r} rotate pairs of channels, and {forget} fades each channel at its own rate, so "
                "that weights would depend on absolute positions; use ForgetGate, or the gate without positions"
            )

    def _forward_part(
        self, x: Hidden, part: SequencePart, packing: Packing | None, mask: Mask | None, *, causal: bool
    ) -> Hidden:
        """Compute self-attention of one part of each sequence; positions count from the first token of the first."""
        if packing is not None and self.positions is not None and not self.positions.relative:
            raise ValueError(f"positions {self.positions.kind!r} restart with documents, which a part cannot; use rope")
        places = None if packing is None else packing.positions
        options = {"causal": causal, "mask": mask, "part": part, "positions": places}
        if self.convolution is not None:
            x = self.convolution(x, **options)
        projections = self._project(x)
        if self.projection_convolution is not None:
            projections = mix_projections(projections, partial(self.projection_convolution, **options))
        index = part.index(x.device)
        q, k, v = self._split_and_rotate(projections, index)
        key_end = part.end if causal else part.total
        key_start = part.offset - self.attention.past_keys(part.offset) if causal else 0
        given = self._position_modifiers(q, index, torch.arange(key_start, key_end, device=x.device)) | self._gate(x)
        starts = None if packing is None else packing.starts
        out, _ = attend_part(self.attention, part, q, k, v, Modifiers(causal, mask, starts=starts, **given))
        return self._join(out, x)

    def _forward_packed(self, x: Hidden, packing: Packing) -> Hidden:
        """Compute self-attention of packed rows: token mixing runs per document, or under a mask."""
        packing.require_whole_rows()
        if self.convolution is not None:
            x = packing.apply_per_document(partial(self.convolution, causal=True), x)
        projections, modifiers = self._project(x), self._gate(x)
        if self.projection_convolution is not None:
            mix = partial(self.projection_convolution, causal=True)
            projections = mix_projections(projections, partial(packing.apply_per_document, mix))
        return self._join(self._attend_packed(projections, modifiers, packing), x)

    def _attend_packed(self, projections: Projections, modifiers: Given, packing: Packing) -> Outputs:
        """Attend inside each document: under a mask, with `starts` or, where neither is faster, per document."""
        relative = self.positions is None or self.positions.relative  # whole rows do not restart positions
        if relative and isinstance(self.attention, Scored):
            masked = "pairs" in self.attention.accepts and not modifiers
            if masked and packing.prefers_mask(self.heads if self.position_role == "bias" else 1):
                return self._attend_masked(projections, packing.document_mask)
        elif relative and modifiers:
            return self._attend(projections, modifiers | {"starts": packing.starts}, causal=True)

        def mix(queries: Tensor, keys: Tensor, values: Tensor, *given: Tensor) -> Tensor:
            own = {name: x.transpose(1, 2) for name, x in zip(modifiers, given, strict=True)}
            out = self._attend((queries, keys, values), own, causal=True)
            return out.transpose(1, 2)  # documents time heads value_dim

        by_time = (x.transpose(1, 2) for x in modifiers.values())
        return packing.apply_per_document(mix, *projections, *by_time).transpose(1, 2)

    def _gate(self, x: Hidden) -> Given:
        """Return what the gates give to the mechanism."""
        return {} if self.gates is None else self.gates.modifiers(x)

    def _attend(self, projections: Projections, modifiers: Given, *, causal: bool, mask: Mask | None = None) -> Outputs:
        """Attend between projections of whole sequences."""
        q, k, v, positional = self._heads_with_positions(projections)
        out: Outputs = self.attention(q, k, v, causal=causal, mask=mask, **positional, **modifiers)
        return out

    def _attend_masked(self, projections: Projections, mask: Mask) -> Outputs:
        """Attend over whole rows under a mask of visible pairs."""
        assert isinstance(self.attention, Scored)
        q, k, v, positional = self._heads_with_positions(projections)
        return self.attention.forward_masked(q, k, v, mask, positional.get("bias"))

    def _heads_with_positions(self, projections: Projections) -> tuple[Queries, Keys, Values, Given]:
        """Return whole sequences split into heads, with their positions applied, and what these modify."""
        if self.positions is None:  # saves an arange on the GPU
            return *self._split_all(projections), {}
        index = torch.arange(projections[0].shape[1], device=projections[0].device)
        q, k, v = self._split_and_rotate(projections, index)
        return q, k, v, self._position_modifiers(q, index, index)

    def _project(self, x: Hidden) -> Projections:
        x = cast_for_autocast(x)
        return self.query(x), self.key(x), self.value(x)

    def _split_and_rotate(self, projections: Projections, index: Tensor) -> tuple[Queries, Keys, Values]:
        """Split projections into heads, and rotate them if the scheme does."""
        q, k, v = self._split_all(projections)
        if self.positions is not None and self.position_role == "rotation":
            q, k = self.positions.rotate(q, index), self.positions.rotate(k, index)
        return q, k, v

    def _split_all(self, projections: Projections) -> tuple[Queries, Keys, Values]:
        queries, keys, values = projections
        return split_heads(queries, self.heads), split_heads(keys, self.key_heads), split_heads(values, self.key_heads)

    def _position_modifiers(self, q: Queries, query_index: Tensor, key_index: Tensor) -> Given:
        """Return the bias or the decay that the positions give, if any."""
        if self.positions is not None and self.position_role == "bias":
            return {"bias": self.positions.bias(q, query_index, key_index)}
        if self.positions is not None and self.position_role == "decay":
            return {"decay": self.positions.decay(q)}
        return {}

    def _join(self, out: Outputs, x: Hidden) -> Hidden:
        """Join the heads; `x` is what the output gate reads."""
        if self.output_norm is not None:
            out = self.output_norm(out)
        if self.gates is not None and self.gates.output is not None:
            out = (out * self.gates.output(x)).to(out.dtype)
        return self.output(out.transpose(1, 2).flatten(2))


def _position_role(positions: Positions | None, attention: Attention) -> str | None:
    if positions is None:
        return None
    role = positions.role_for(attention.accepts)
    if role == "input":
        raise ValueError(
            f"positions {positions.kind!r} are added to the model's input, not given to its heads: "
            "x = positions(x, index) before the first block"
        )
    if role is None:
        raise incompatible_error(positions, attention.kind, attention.accepts)
    return role
