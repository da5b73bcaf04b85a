"""Multi-head attention: project, split into heads, attend, join.

    MultiHead(512, 8, Taylor(order=2), Rope())        any mechanism, any scheme that serves it

The mechanism and the positions are parts that are passed in; an impossible pair is refused here.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from qkv.attention import Attention, Scored, State
from qkv.attention.base import NARROWS
from qkv.cost import Cost, Shape, Span, learned, linear
from qkv.layers.convolution import ShortConvolution
from qkv.layers.packing import Packing
from qkv.positions import Positions, refuse
from qkv.shapes import Hidden, Keys, Mask, Outputs, Queries, Rows, Values


@dataclass(frozen=True)
class Heads:
    """How a model's width is split into heads; None means the usual choice."""

    count: int
    key_heads: int | None = None
    """Heads of keys and values, shared by groups of query heads; None: `count`."""
    key_dim: int | None = None
    """Width of a query or key; None: dim / count."""
    value_dim: int | None = None
    """Width of a value; None: dim / count."""

    def resolve(self, dim: int) -> tuple[int, int, int, int]:
        """(heads, key_heads, key_dim, value_dim) for a model this wide."""
        given = {"heads": self.count, "key_heads": self.key_heads, "key_dim": self.key_dim, "value_dim": self.value_dim}
        for name, number in given.items():
            if number is not None and number < 1:
                raise ValueError(f"{name} must be at least 1, got {number}")
        key_heads = self.count if self.key_heads is None else self.key_heads
        if self.count % key_heads:
            raise ValueError(f"key_heads={key_heads} must divide heads={self.count}")
        if dim % self.count and None in (self.key_dim, self.value_dim):
            raise ValueError(f"heads={self.count} must divide dim={dim}, or give Heads both key_dim and value_dim")
        usual = dim // self.count
        key_dim, value_dim = (usual if width is None else width for width in (self.key_dim, self.value_dim))
        return self.count, key_heads, key_dim, value_dim


@dataclass(frozen=True)
class HeadsState:
    """What one multi-head layer remembers between tokens."""

    attention: State
    convolution: Tensor | None = None

    @property
    def length(self) -> int:
        """Tokens seen so far."""
        return self.attention.length

    @property
    def bytes(self) -> int:
        """Bytes held."""
        return self.attention.bytes + (0 if self.convolution is None else self.convolution.nbytes)

    def select(self, rows: Rows) -> "HeadsState":
        """The state of these sequences."""
        convolution = None if self.convolution is None else self.convolution[rows]
        return HeadsState(self.attention.select(rows), convolution)


@dataclass(frozen=True)
class Context:
    """Another sequence to attend to, projected once and used for every token."""

    k: Keys
    v: Values
    mask: Mask | None = None

    def select(self, rows: Rows) -> "Context":
        """The context of these sequences."""
        return Context(self.k[rows], self.v[rows], None if self.mask is None else self.mask[rows])


class MultiHead(nn.Module):
    """Attention of `heads` heads between linear projections.

    `convolution` mixes each token with its neighbors first, `output_norm` (such as
    `nn.RMSNorm(value_dim)`) norms what each head gives: linear kinds need both to learn recall.
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
        self.role = _role(positions, attention)
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
        """Self-attention; `mask` (batch, time) hides padding, and with `packing` each document sees only itself."""
        if packing is not None:
            return self._forward_packed(x, packing, plain=causal and mask is None)
        if self.convolution is not None:
            x = self.convolution(x, causal=causal, mask=mask)
        return self._join(self._mix(*self._project(x), causal=causal, mask=mask))

    def start(self, batch: int, capacity: int | None = None) -> HeadsState:
        """The state before the first token, where this layer's weights are."""
        home = _home(self.query)
        state = self.attention.start(
            batch,
            self.heads,
            self.key_dim,
            self.value_dim,
            # every query head fades at its own rate, so each needs a memory of its own
            key_heads=self.heads if self.role == "decay" else self.key_heads,
            capacity=capacity,
            dtype=home.dtype,
            device=home.device,
        )
        convolution = None if self.convolution is None else self.convolution.start(batch)
        return HeadsState(state, convolution)

    def step(self, x: Hidden, state: HeadsState, *, mask: Mask | None = None) -> tuple[Hidden, HeadsState]:
        """The next token or tokens; equals the causal `forward` over all of them."""
        convolution = state.convolution
        if self.convolution is not None:
            assert convolution is not None
            x, convolution = self.convolution.step(x, convolution, mask=mask)
        past, end = state.attention, state.attention.length + x.shape[1]
        index = torch.arange(past.length, end, device=x.device)
        q, k, v = self._place(*self._project(x), index)
        bias, decay = self._tell_places(q, index, torch.arange(past.length - past.reach, end, device=x.device))
        out, new = self.attention.step(q, k, v, past, mask=mask, bias=bias, decay=decay)
        return self._join(out), HeadsState(new, convolution)

    def remember(self, context: Hidden, mask: Mask | None = None) -> Context:
        """Keys and values of another sequence, for `recall`."""
        self._require_for_two()
        return Context(
            self._split(self.key(context), self.key_heads), self._split(self.value(context), self.key_heads), mask
        )

    def recall(self, x: Hidden, context: Context) -> Hidden:
        """Cross attention: each token of `x` looks at all of the context."""
        self._require_for_two()
        q = self._split(self.query(x), self.heads)
        return self._join(self.attention(q, context.k, context.v, mask=context.mask))

    def cost(self, span: Span) -> Cost:
        """Four projections, the mechanism between them, and what places and norms have learned.

        With `span.context` it is cross attention: keys and values come from the other sequence.
        """
        keys = span.time if span.context is None else span.context
        shape = Shape(
            *(span.batch, self.heads, span.time, keys, self.key_dim, self.value_dim, self.key_heads),
            causal=span.causal and span.context is None,
            decay=self.role == "decay",
            element_bytes=span.element_bytes,
        )
        asked, answering = span.tokens, span.batch * keys
        total = self.attention.cost(shape).within("attention")
        total += linear(self.query, asked).within("query") + linear(self.output, asked).within("output")
        total += linear(self.key, answering).within("key") + linear(self.value, answering).within("value")
        if self.positions is not None:
            total += self.positions.cost(shape).within("positions")
        if self.output_norm is not None:
            total += learned(self.output_norm).within("output_norm")
        return total if self.convolution is None else total + self.convolution.cost(span).within("convolution")

    def _require_for_two(self) -> None:
        """Refuse to be a cross attention with parts that know one sequence only."""
        if self.positions is not None:
            raise ValueError(
                f"positions {self.positions.kind!r} relate places of one sequence, and cross attention has two; "
                "build its MultiHead without positions"
            )
        if self.convolution is not None:
            raise ValueError(
                f"a convolution of width {self.convolution.width} mixes neighbors of one sequence, and cross "
                "attention has two; build its MultiHead without convolution"
            )

    def _forward_packed(self, x: Hidden, packing: Packing, *, plain: bool) -> Hidden:
        """Only what mixes tokens runs document by document, or under a mask."""
        if not plain:
            raise ValueError("packing needs causal=True and no mask: documents are filled up where nothing looks back")
        if self.convolution is not None:
            x = packing.by_document(partial(self.convolution, causal=True), x)
        if self._takes_mask and packing.fits_mask(self.heads if self.role == "bias" else 1):
            return self._join(self._mix_seen(*self._project(x), packing.seen))

        def mix(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            return self._mix(queries, keys, values, causal=True).transpose(1, 2)  # documents time heads value_dim

        return self._join(packing.by_document(mix, *self._project(x)).transpose(1, 2))

    @property
    def _takes_mask(self) -> bool:
        """Whether a mask can keep documents apart: it starts no places anew, so distances alone must count."""
        relative = self.positions is None or self.positions.relative
        return relative and isinstance(self.attention, Scored) and "pairs" in self.attention.accepts

    def _mix(self, queries: Tensor, keys: Tensor, values: Tensor, *, causal: bool, mask: Mask | None = None) -> Outputs:
        """Attention between projections (batch, time, heads * dim) of whole sequences."""
        q, k, v, bias, decay = self._place_all(queries, keys, values)
        return self.attention(q, k, v, causal=causal, mask=mask, bias=bias, decay=decay)

    def _mix_seen(self, queries: Tensor, keys: Tensor, values: Tensor, seen: Mask) -> Outputs:
        """`_mix` of whole rows, each token with those that it sees."""
        assert isinstance(self.attention, Scored)
        q, k, v, bias, _ = self._place_all(queries, keys, values)
        return self.attention.forward_seen(q, k, v, seen, bias)

    def _place_all(
        self, queries: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Queries, Keys, Values, Tensor | None, Tensor | None]:
        """Projections of whole sequences as heads, and what their places have to say: (q, k, v, bias, decay)."""
        if self.positions is None:  # nobody asks for places: a GPU would number them for nothing
            return *self._split_all(queries, keys, values), None, None
        index = torch.arange(queries.shape[1], device=queries.device)
        q, k, v = self._place(queries, keys, values, index)
        return q, k, v, *self._tell_places(q, index, index)

    def _project(self, x: Hidden) -> tuple[Tensor, Tensor, Tensor]:
        x = _cast_once(x)
        return self.query(x), self.key(x), self.value(x)

    def _place(self, queries: Tensor, keys: Tensor, values: Tensor, index: Tensor) -> tuple[Queries, Keys, Values]:
        """Projections (batch, time, heads * dim) as heads, turned by their places if the scheme says so."""
        q, k, v = self._split_all(queries, keys, values)
        if self.positions is not None and self.role == "rotation":
            q, k = self.positions.rotate(q, index), self.positions.rotate(k, index)
        return q, k, v

    def _split_all(self, queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Queries, Keys, Values]:
        return self._split(queries, self.heads), self._split(keys, self.key_heads), self._split(values, self.key_heads)

    def _tell_places(self, q: Queries, query_index: Tensor, key_index: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """What the positions have to say, as (bias, decay)."""
        bias = decay = None
        if self.positions is not None and self.role == "bias":
            bias = self.positions.bias(q, query_index, key_index)
        elif self.positions is not None and self.role == "decay":
            decay = self.positions.decay(q)
        return bias, decay

    def _join(self, out: Tensor) -> Hidden:
        if self.output_norm is not None:
            out = self.output_norm(out)
        return self.output(out.transpose(1, 2).flatten(2))

    @staticmethod
    def _split(x: Hidden, heads: int) -> Tensor:
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)  # batch heads time dim


def _home(layer: nn.Module) -> Tensor:
    """A tensor of the layer's type and device: a weight, of a wrapped layer one inside; a quantized layer has none."""
    return next((x for x in layer.parameters() if x.is_floating_point()), torch.empty(0))


def _cast_once(x: Hidden) -> Hidden:
    """Under autocast in its type, which else each of three projections casts to, and each of their gradients back."""
    kind = x.device.type
    narrows = x.dtype == torch.float and kind in NARROWS and torch.is_autocast_enabled(kind)
    return x.to(torch.get_autocast_dtype(kind)) if narrows else x


def _role(positions: Positions | None, attention: Attention) -> str | None:
    if positions is None:
        return None
    role = positions.role_for(attention.accepts)
    if role == "input":
        raise ValueError(
            f"positions {positions.kind!r} are added to the model's input, not told to its heads: "
            "x = positions(x, index) before the first block"
        )
    if role is None:
        raise refuse(positions, attention.kind, attention.accepts)
    return role
