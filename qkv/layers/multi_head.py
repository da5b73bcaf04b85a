"""Multi-head attention: project, split into heads, attend, join.

    MultiHead(512, 8, Taylor(order=2), Rope())        any mechanism, any position scheme that serves it

The mechanism and the positions are passed in; an impossible pair raises here.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from qkv.attention import Attention, Scored, State
from qkv.attention.internal.precision import AUTOCAST_DEVICES
from qkv.cost import Cost, Shape, Span, linear, parameters_only
from qkv.layers.convolution import ShortConvolution
from qkv.layers.packing import Packing
from qkv.positions import Positions, incompatible_error
from qkv.shapes import Bias, Hidden, Keys, Mask, Outputs, Queries, Rows, Values


@dataclass(frozen=True)
class Heads:
    """Number and sizes of heads; None means the default."""

    count: int
    key_heads: int | None = None
    """Heads of keys and values, shared by groups of query heads; default: `count`."""
    key_dim: int | None = None
    """Width of a query or key; default: dim / count."""
    value_dim: int | None = None
    """Width of a value; default: dim / count."""

    def resolve(self, dim: int) -> tuple[int, int, int, int]:
        """Return (heads, key_heads, key_dim, value_dim) for a model of this width."""
        given = {"heads": self.count, "key_heads": self.key_heads, "key_dim": self.key_dim, "value_dim": self.value_dim}
        for name, value in given.items():
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        key_heads = self.count if self.key_heads is None else self.key_heads
        if self.count % key_heads:
            raise ValueError(f"key_heads={key_heads} must divide heads={self.count}")
        if dim % self.count and None in (self.key_dim, self.value_dim):
            raise ValueError(f"heads={self.count} must divide dim={dim}, unless key_dim and value_dim are given")
        key_dim = dim // self.count if self.key_dim is None else self.key_dim
        value_dim = dim // self.count if self.value_dim is None else self.value_dim
        return self.count, key_heads, key_dim, value_dim


@dataclass(frozen=True)
class HeadsState:
    """Decoding state of one multi-head layer."""

    attention: State
    convolution: Tensor | None = None

    @property
    def length(self) -> int:
        """Number of tokens processed so far."""
        return self.attention.length

    @property
    def bytes(self) -> int:
        """Bytes held."""
        return self.attention.bytes + (0 if self.convolution is None else self.convolution.nbytes)

    def select(self, rows: Rows) -> "HeadsState":
        """Return the state of these batch rows."""
        convolution = None if self.convolution is None else self.convolution[rows]
        return HeadsState(self.attention.select(rows), convolution)


@dataclass(frozen=True)
class Context:
    """Keys and values of another sequence for cross-attention, projected once and used at every step."""

    k: Keys
    v: Values
    mask: Mask | None = None

    def select(self, rows: Rows) -> "Context":
        """Return the context of these batch rows."""
        return Context(self.k[rows], self.v[rows], None if self.mask is None else self.mask[rows])


class MultiHead(nn.Module):
    """Multi-head attention between linear projections.

    `convolution` first mixes each token with its neighbors. `output_norm`, such as
    `nn.RMSNorm(value_dim)`, normalizes the output of each head. Linear kinds need both to learn recall.
    """

    def __init__(
        self,
        dim: int,
        heads: int | Heads,
        attention: Attention,
        positions: Positions | None = None,
        *,
        convolution: ShortConvolution | None = None,
        output_norm: nn.Module | None = None,
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
        self.convolution = convolution
        self.output_norm = output_norm
        self.query = nn.Linear(dim, self.heads * self.key_dim, bias=bias)
        self.key = nn.Linear(dim, self.key_heads * self.key_dim, bias=bias)
        self.value = nn.Linear(dim, self.key_heads * self.value_dim, bias=bias)
        self.output = nn.Linear(self.heads * self.value_dim, dim, bias=bias)

    def forward(
        self, x: Hidden, *, causal: bool = False, mask: Mask | None = None, packing: Packing | None = None
    ) -> Hidden:
        """Compute self-attention; `mask` (batch, time) hides padding, `packing` restricts attention to documents."""
        self._check_input("x", x)
        if packing is not None:
            return self._forward_packed(x, packing, causal_unmasked=causal and mask is None)
        if self.convolution is not None:
            x = self.convolution(x, causal=causal, mask=mask)
        return self._join(self._attend(*self._project(x), causal=causal, mask=mask))

    def start(self, batch: int, capacity: int | None = None) -> HeadsState:
        """Return the state before the first token, on the device of this layer."""
        reference = _reference_parameter(self.query)
        state = self.attention.start(
            batch,
            self.heads,
            self.key_dim,
            self.value_dim,
            # every query head has its own decay rate, so each needs its own state
            key_heads=self.heads if self.position_role == "decay" else self.key_heads,
            capacity=capacity,
            dtype=reference.dtype,
            device=reference.device,
        )
        convolution = None if self.convolution is None else self.convolution.start(batch)
        return HeadsState(state, convolution)

    def step(self, x: Hidden, state: HeadsState, *, mask: Mask | None = None) -> tuple[Hidden, HeadsState]:
        """Process the next token or tokens (decode or prefill); equals the causal `forward` over all of them."""
        self._check_input("x", x)
        convolution = state.convolution
        if self.convolution is not None:
            assert convolution is not None
            x, convolution = self.convolution.step(x, convolution, mask=mask)
        past, end = state.attention, state.attention.length + x.shape[1]
        index = torch.arange(past.length, end, device=x.device)
        q, k, v = self._split_and_rotate(*self._project(x), index)
        key_index = torch.arange(past.length - past.addressable_keys, end, device=x.device)
        bias, decay = self._position_modifiers(q, index, key_index)
        out, new = self.attention.step(q, k, v, past, mask=mask, bias=bias, decay=decay)
        return self._join(out), HeadsState(new, convolution)

    def project_context(self, context: Hidden, mask: Mask | None = None) -> Context:
        """Project the keys and values of another sequence, for `cross_attend`."""
        self._check_cross_attention()
        self._check_input("context", context)
        return Context(
            self._split(self.key(context), self.key_heads), self._split(self.value(context), self.key_heads), mask
        )

    def cross_attend(self, x: Hidden, context: Context, bias: Bias | None = None) -> Hidden:
        """Compute cross-attention from each token of `x` to the whole context; `bias` is added to the scores."""
        self._check_cross_attention()
        self._check_input("x", x)
        q = self._split(self.query(x), self.heads)
        return self._join(self.attention(q, context.k, context.v, mask=context.mask, bias=bias))

    def cost(self, span: Span) -> Cost:
        """Return the cost of four projections, the mechanism, positions and norms.

        With `span.context` it is cross-attention: keys and values come from the other sequence.
        """
        keys = span.time if span.context is None else span.context
        shape = Shape(
            *(span.batch, self.heads, span.time, keys, self.key_dim, self.value_dim, self.key_heads),
            causal=span.causal and span.context is None,
            decay=self.position_role == "decay",
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
        return total if self.convolution is None else total + self.convolution.cost(span).within("convolution")

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
        if self.convolution is not None:
            raise ValueError(
                f"a convolution of width {self.convolution.width} mixes neighbors of one sequence, but "
                "cross-attention has two; build its MultiHead without convolution"
            )

    def _forward_packed(self, x: Hidden, packing: Packing, *, causal_unmasked: bool) -> Hidden:
        """Compute self-attention of packed rows: token mixing runs per document, or under a mask."""
        if not causal_unmasked:
            raise ValueError("packing needs causal=True and mask=None: documents are padded at their ends")
        if self.convolution is not None:
            x = packing.apply_per_document(partial(self.convolution, causal=True), x)
        if self._packs_by_mask and packing.prefers_mask(self.heads if self.position_role == "bias" else 1):
            return self._join(self._attend_masked(*self._project(x), packing.document_mask))

        def mix(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            return self._attend(queries, keys, values, causal=True).transpose(1, 2)  # documents time heads value_dim

        return self._join(packing.apply_per_document(mix, *self._project(x)).transpose(1, 2))

    @property
    def _packs_by_mask(self) -> bool:
        """Whether a mask can separate documents: it does not restart positions, so the scheme must be relative."""
        relative = self.positions is None or self.positions.relative
        return relative and isinstance(self.attention, Scored) and "pairs" in self.attention.accepts

    def _attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, *, causal: bool, mask: Mask | None = None
    ) -> Outputs:
        """Attend between projections (batch, time, heads * dim) of whole sequences."""
        q, k, v, bias, decay = self._heads_with_positions(queries, keys, values)
        return self.attention(q, k, v, causal=causal, mask=mask, bias=bias, decay=decay)

    def _attend_masked(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Mask) -> Outputs:
        """Attend over whole rows under a mask of visible pairs."""
        assert isinstance(self.attention, Scored)
        q, k, v, bias, _ = self._heads_with_positions(queries, keys, values)
        return self.attention.forward_masked(q, k, v, mask, bias)

    def _heads_with_positions(
        self, queries: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Queries, Keys, Values, Tensor | None, Tensor | None]:
        """Return whole sequences split into heads, with their positions applied: (q, k, v, bias, decay)."""
        if self.positions is None:  # saves an arange on the GPU
            return *self._split_all(queries, keys, values), None, None
        index = torch.arange(queries.shape[1], device=queries.device)
        q, k, v = self._split_and_rotate(queries, keys, values, index)
        return q, k, v, *self._position_modifiers(q, index, index)

    def _project(self, x: Hidden) -> tuple[Tensor, Tensor, Tensor]:
        x = _cast_for_autocast(x)
        return self.query(x), self.key(x), self.value(x)

    def _split_and_rotate(
        self, queries: Tensor, keys: Tensor, values: Tensor, index: Tensor
    ) -> tuple[Queries, Keys, Values]:
        """Split projections (batch, time, heads * dim) into heads, and rotate them if the scheme does."""
        q, k, v = self._split_all(queries, keys, values)
        if self.positions is not None and self.position_role == "rotation":
            q, k = self.positions.rotate(q, index), self.positions.rotate(k, index)
        return q, k, v

    def _split_all(self, queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Queries, Keys, Values]:
        return self._split(queries, self.heads), self._split(keys, self.key_heads), self._split(values, self.key_heads)

    def _position_modifiers(
        self, q: Queries, query_index: Tensor, key_index: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the modifiers that the positions give: (bias, decay)."""
        bias = decay = None
        if self.positions is not None and self.position_role == "bias":
            bias = self.positions.bias(q, query_index, key_index)
        elif self.positions is not None and self.position_role == "decay":
            decay = self.positions.decay(q)
        return bias, decay

    def _join(self, out: Tensor) -> Hidden:
        if self.output_norm is not None:
            out = self.output_norm(out)
        return self.output(out.transpose(1, 2).flatten(2))

    @staticmethod
    def _split(x: Hidden, heads: int) -> Tensor:
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)  # batch heads time dim


def _reference_parameter(layer: nn.Module) -> Tensor:
    """Return a floating-point parameter of the layer, for its dtype and device; a quantized layer has none."""
    return next((x for x in layer.parameters() if x.is_floating_point()), torch.empty(0))


def _cast_for_autocast(x: Hidden) -> Hidden:
    """Cast `x` once under autocast, instead of once in each of three projections and their gradients."""
    device_type = x.device.type
    if x.dtype != torch.float or device_type not in AUTOCAST_DEVICES or not torch.is_autocast_enabled(device_type):
        return x
    return x.to(torch.get_autocast_dtype(device_type))


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
