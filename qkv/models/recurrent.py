"""The recurrent encoder-decoder, with or without attention.

    encoder:  h_t = cell(x_t, h_(t-1)), in both directions
    decoder:  s_t = cell([y_(t-1), c_(t-1)], s_(t-1)),   c_t = attention of s_t over the h

Without attention the decoder sees only the encoder's last state, however long the source.
Papers: https://arxiv.org/abs/1409.3215 (without), https://arxiv.org/abs/1409.0473 (with).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from qkv.attention import Additive, Attention, Softmax
from qkv.attention.state import RaggedState, check_joinable, join_offsets, join_rows, needed_places, pad_end
from qkv.cost import Cost, Shape, Span, linear, parameters_only, recurrent
from qkv.errors import unknown_name_error
from qkv.models.registry import register
from qkv.models.validation import require_at_least, require_length, require_mask
from qkv.shapes import Mask, Rows

CELLS: dict[str, Callable[..., nn.RNNBase]] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
ATTENTIONS: dict[str, Callable[[int], Attention | None]] = {
    "none": lambda dim: None,
    "additive": Additive,
    "softmax": lambda dim: Softmax(),
}


@dataclass(frozen=True)
class RecurrentConfig:
    """Sizes and kinds of a recurrent encoder-decoder."""

    dim: int = 256
    """Width of embeddings and of the decoder's state."""
    layers: int = 1
    """Layers of the encoder and of the decoder."""
    cell: str = "lstm"
    """rnn, gru or lstm."""
    attention: str = "additive"
    """none, additive or softmax: attention of the decoder over the source."""
    dropout: float = 0.1
    """Dropout probability between layers."""
    max_length: int = 128
    """Longest output."""

    def __post_init__(self) -> None:
        require_at_least(1, self, "dim", "layers", "max_length")
        if self.dim % 2:
            raise ValueError(f"dim must be even (half for each direction of the encoder), got {self.dim}")
        if self.cell not in CELLS:
            raise unknown_name_error("cell", self.cell, CELLS)
        if self.attention not in ATTENTIONS:
            raise unknown_name_error("attention of a recurrent model", self.attention, ATTENTIONS)


@dataclass(frozen=True)
class RecurrentDecoderState(RaggedState):
    """The decoding state; batch is the first axis of each tensor."""

    hidden: tuple[Tensor, ...]
    """States of the decoder's layers: one for rnn and gru, two for lstm; (batch, layers, dim)."""
    context: Tensor
    """Output of the last attention over the source: (batch, dim)."""
    source: Tensor
    """The encoder's outputs: (batch, time, dim)."""
    mask: Mask | None
    length: int = 0
    """Tokens generated for the longest row, and padding that all rows have."""
    padding: Rows | None = None
    """Tokens that each row was generated fewer; None: all the same."""

    @property
    def rows(self) -> int:
        """Number of sequences."""
        return self.context.shape[0]

    @property
    def bytes(self) -> int:
        """Size of the hidden states, the context and the encoder's outputs."""
        return sum(x.nbytes for x in (*self.hidden, self.context, self.source))

    def select(self, rows: Rows) -> "RecurrentDecoderState":
        """Return the state of these rows."""
        hidden = tuple(x[rows] for x in self.hidden)
        mask, padding = (None if x is None else x[rows] for x in (self.mask, self.padding))
        return RecurrentDecoderState(hidden, self.context[rows], self.source[rows], mask, self.length, padding)

    def tensors(self) -> dict[str, Tensor]:
        """Return the hidden states, the context, the source and its mask, and the length."""
        named = {f"hidden.{number}": x for number, x in enumerate(self.hidden)}
        named |= {"context": self.context, "source": self.source, "length": torch.tensor(self.length)}
        optional = {"mask": self.mask, "padding": self.padding}
        return named | {name: x for name, x in optional.items() if x is not None}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> "RecurrentDecoderState":
        """Return a state of these tensors."""
        hidden = tuple(tensors[f"hidden.{number}"] for number in range(len(self.hidden)))
        mask, padding, length = tensors.get("mask"), tensors.get("padding"), int(tensors["length"])
        return RecurrentDecoderState(hidden, tensors["context"], tensors["source"], mask, length, padding)

    def join(self, *others: "RecurrentDecoderState") -> "RecurrentDecoderState":
        """Return one state of all rows; shorter sources get padding at their ends, which the mask hides."""
        states = (self, *others)
        check_joinable(states)
        if len({len(state.hidden) for state in states}) > 1:
            raise ValueError("states cannot be joined: only some have the second state of an lstm")
        widest = max(state.source.shape[1] for state in states)
        hidden = tuple(join_rows("hidden", parts) for parts in zip(*(x.hidden for x in states), strict=True))
        source = join_rows("source", [pad_end(state.source, 1, widest) for state in states])
        visible = (
            x.source.new_ones(x.source.shape[:2], dtype=torch.bool) if x.mask is None else x.mask for x in states
        )
        mask = join_rows("mask", [pad_end(x, 1, widest) for x in visible])
        context = join_rows("context", [state.context for state in states])
        lengths, rows = [state.length for state in states], [state.rows for state in states]
        padding = join_offsets([state.padding for state in states], lengths, rows, self.device)
        return RecurrentDecoderState(hidden, context, source, mask, max(lengths), padding)

    def compact(self) -> "RecurrentDecoderState":
        """Return the state without the source places that no row needs; generated tokens take none."""
        state = super().compact()
        if state.mask is None:
            return state
        kept, mask = needed_places(state.mask)
        return replace(state, source=state.source[:, kept], mask=mask)

    def _without_places(self, count: int, padding: Rows | None) -> "RecurrentDecoderState":
        return replace(self, length=self.length - count, padding=padding)


@register("recurrent", RecurrentConfig)
class Recurrent(nn.Module):
    """Logits of the next target token, given the source and the target so far."""

    supports_cuda_graphs = False
    """False: it reads the lengths of its sources on the CPU, which a CUDA graph cannot capture."""

    def __init__(self, config: RecurrentConfig, sources: int, targets: int):
        super().__init__()
        self.config = config
        dim, dropout = config.dim, config.dropout if config.layers > 1 else 0.0
        options = {"num_layers": config.layers, "batch_first": True, "dropout": dropout}
        self.source_embedding = nn.Embedding(sources, dim, padding_idx=0)
        self.target_embedding = nn.Embedding(targets, dim, padding_idx=0)
        self.encoder = CELLS[config.cell](dim, dim // 2, bidirectional=True, **options)
        self.decoder = CELLS[config.cell](2 * dim, dim, **options)
        self.attention = ATTENTIONS[config.attention](dim)
        self.join = nn.Linear(2 * dim, dim)
        self.dropout = nn.Dropout(config.dropout)
        self.lm_head = nn.Linear(dim, targets)

    def forward(self, source: Tensor, target: Tensor, mask: Mask | None = None) -> Tensor:
        """Return logits (batch, target time, targets) after each token of `target`; `mask` hides source padding.

        Each step needs the attention output of the one before, so the target is processed token by token.
        """
        state = self.start(source, mask)
        joined = []
        for token in self.dropout(self.target_embedding(target)).unbind(1):
            out, state = self._advance(token, state)
            joined.append(out)
        empty = state.context.new_zeros(target.shape[0], 0, self.config.dim)
        return self.lm_head(torch.stack(joined, 1) if joined else empty)

    def start(self, inputs: Tensor, mask: Mask | None) -> RecurrentDecoderState:
        """Encode the source and return the state before the first target token; padding must come last."""
        packed = nn.utils.rnn.pack_padded_sequence(
            self.dropout(self.source_embedding(inputs)), _lengths(inputs, mask), batch_first=True, enforce_sorted=False
        )
        outputs, last = self.encoder(packed)
        source, _ = nn.utils.rnn.pad_packed_sequence(outputs, batch_first=True, total_length=inputs.shape[1])
        hidden = tuple(self._both_directions(x) for x in _states(last))
        return RecurrentDecoderState(hidden, source.new_zeros(inputs.shape[0], self.config.dim), source, mask)

    def step(self, tokens: Rows, state: RecurrentDecoderState) -> tuple[Tensor, RecurrentDecoderState]:
        """Return logits (rows, targets) after one more token per row, and the new state."""
        out, state = self._advance(self.target_embedding(tokens), state)
        return self.lm_head(out), state

    def cost(self, span: Span) -> Cost:
        """Return the cost of encoder, decoder, attention over the source (`span.context`) at every step, and output."""
        if span.context is None:
            raise ValueError("span.context must be the number of source tokens, got None")
        total = recurrent(self.encoder, span.batch * span.context).within("encoder")
        total += recurrent(self.decoder, span.tokens).within("decoder")
        total += linear(self.join, span.tokens).within("join") + linear(self.lm_head, span.tokens).within("lm_head")
        total += parameters_only(self.source_embedding).within("read") + parameters_only(self.target_embedding).within(
            "write"
        )
        values = {"hidden": (1 + (self.config.cell == "lstm")) * self.config.layers * self.config.dim}
        if self.attention is not None:
            total += self._attention_cost(self.attention, span).within("attention")
            values |= {"context": self.config.dim, "source": span.context * self.config.dim}
        row_bytes = span.batch * span.element_bytes
        return total + Cost(state={name: row_bytes * count for name, count in values.items()})

    def _attention_cost(self, attention: Attention, span: Span) -> Cost:
        """Return the cost of one query per step. Products of the keys are needed once, but executed at every step."""
        dim = self.config.dim
        once = attention.cost(Shape(span.batch, 1, 1, span.context or 0, dim, dim))
        needed = {name: count if name == "key" else span.time * count for name, count in once.needed.items()}
        executed = {name: span.time * count for name, count in once.executed.items()}
        return replace(once, needed=needed, executed=executed, state={})

    def _advance(self, x: Tensor, state: RecurrentDecoderState) -> tuple[Tensor, RecurrentDecoderState]:
        length = state.length + 1
        require_length(length, self.config.max_length)
        hidden = tuple(h.transpose(0, 1).contiguous() for h in state.hidden)
        given = torch.cat((x, state.context), -1)[:, None]
        out, last = self.decoder(given, hidden if len(hidden) == 2 else hidden[0])
        context = self._attend(out, state)
        joined = self.dropout(torch.tanh(self.join(torch.cat((out[:, 0], context), -1))))
        hidden = tuple(h.transpose(0, 1) for h in _states(last))
        return joined, replace(state, hidden=hidden, context=context, length=length)

    def _attend(self, query: Tensor, state: RecurrentDecoderState) -> Tensor:
        if self.attention is None:
            return torch.zeros_like(query[:, 0])
        source = state.source[:, None]  # batch heads time dim
        return self.attention(query[:, None], source, source, mask=state.mask)[:, 0, 0]

    def _both_directions(self, last: Tensor) -> Tensor:
        """Concatenate the last states of both directions: (layers * 2, batch, dim / 2) -> (batch, layers, dim)."""
        layers = last.unflatten(0, (self.config.layers, 2))
        return torch.cat((layers[:, 0], layers[:, 1]), -1).transpose(0, 1)


def _states(last: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return last if isinstance(last, tuple) else (last,)


def _lengths(inputs: Tensor, mask: Mask | None) -> Tensor:
    """Return the length of each source, on the CPU; an empty one counts as one token of padding."""
    if not inputs.numel():
        raise ValueError(f"inputs must have at least one row and one token, got shape {tuple(inputs.shape)}")
    require_mask(mask, inputs)
    if mask is None:
        return torch.full(inputs.shape[:1], inputs.shape[1])
    if bool((mask[:, 1:] & ~mask[:, :-1]).any()):
        raise ValueError("mask must be True at the first tokens of each row: a recurrent model needs its padding last")
    return mask.sum(1).clamp(min=1).cpu()
