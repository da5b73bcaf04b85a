"""The decoder-only Transformer: causal attention, predicts the next token."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from qkv.attention.parallel.group import SequencePart
from qkv.attention.state import (
    RaggedState,
    check_joinable,
    join_offsets,
    join_parts,
    put_offsets,
    under_prefix,
    with_prefix,
)
from qkv.cost import Cost, Span, linear, parameters_only
from qkv.layers import HeadsState, Packing, SequenceModel
from qkv.layers.activation import make_activation
from qkv.models.attention_pattern import kinds_of_layers
from qkv.models.builders import PositionEmbedding, as_decoder_block, blocks_cost, decoder_block
from qkv.models.registry import register
from qkv.models.validation import require_at_least, require_length, require_mask, values_readable
from qkv.shapes import Mask, Rows


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes and kinds of a decoder-only Transformer."""

    dim: int = 128
    """Width of the model."""
    heads: int = 4
    """Attention heads; they share the width."""
    key_dim: int | None = None
    """Width of queries and keys; None: dim / heads."""
    hidden_dim: int = 512
    """Width of the feed-forward layers; 0: no feed-forward layers."""
    layers: int = 2
    """Number of blocks."""
    dropout: float = 0.0
    """Dropout probability on every residual path."""
    attention: str = "softmax"
    """Kind of self-attention, such as taylor(order=4); gates: delta+forget+write; over the layers: 3*linear,softmax."""
    positions: str = "rope"
    """Position scheme, or none."""
    convolution: int = 0
    """Width of a short convolution before each attention; 0: no convolution."""
    tied: bool = True
    """Whether the output layer shares the weights of the embedding."""
    activation: str = "gelu"
    """Activation of the feed-forward layers: gelu, gelu_tanh (GPT-2's), relu, ..."""
    max_length: int = 1024
    """Longest sequence."""

    def __post_init__(self) -> None:
        require_at_least(1, self, "dim", "heads", "layers", "max_length")
        require_at_least(0, self, "hidden_dim", "convolution")
        make_activation(self.activation)


@dataclass(frozen=True)
class DecoderState(RaggedState):
    """The attention state of each block after the tokens so far."""

    blocks: tuple[HeadsState, ...]
    padding: Rows | None = None
    """Padding in front of each row; None: no padding."""

    @property
    def length(self) -> int:
        """Number of places: tokens of the longest row, and padding that all rows have."""
        return self.blocks[0].length

    @property
    def rows(self) -> int:
        """Number of sequences."""
        return self.blocks[0].rows

    @property
    def bytes(self) -> int:
        """Size of the states of all blocks."""
        return sum(state.bytes for state in self.blocks)

    def select(self, rows: Rows) -> "DecoderState":
        """Return the state of these rows."""
        padding = None if self.padding is None else self.padding[rows]
        return DecoderState(tuple(state.select(rows) for state in self.blocks), padding)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of each block, and the padding."""
        named = {} if self.padding is None else {"padding": self.padding}
        for number, block in enumerate(self.blocks):
            named |= with_prefix(f"blocks.{number}", block.tensors())
        return named

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> "DecoderState":
        """Return a state of these tensors."""
        blocks = (x.with_tensors(under_prefix(f"blocks.{number}", tensors)) for number, x in enumerate(self.blocks))
        return DecoderState(tuple(blocks), tensors.get("padding"))

    def join(self, *others: "DecoderState") -> "DecoderState":
        """Return one state of all rows, first those of this one; shorter rows get padding in front."""
        states = (self, *others)
        check_joinable(states)
        blocks = join_parts("blocks", [state.blocks for state in states])
        lengths, rows = [state.length for state in states], [state.rows for state in states]
        return DecoderState(blocks, join_offsets([state.padding for state in states], lengths, rows, self.device))

    def put(self, rows: Rows, other: "DecoderState") -> "DecoderState":
        """Write all rows of `other` over these rows, in place; for recurrent states, whose rows have one size."""
        lengths = (self.length, other.length)
        padding = put_offsets((self.padding, other.padding), lengths, self.rows, rows)
        pairs = zip(self.blocks, other.blocks, strict=True)
        return DecoderState(tuple(mine.put(rows, theirs) for mine, theirs in pairs), padding)

    def _without_places(self, count: int, padding: Rows | None) -> "DecoderState":
        return DecoderState(tuple(block.drop_places(count) for block in self.blocks), padding)

    @property
    def place_axes(self) -> dict[str, int]:
        """Axis of the tokens in the tensors of each block."""
        pairs = enumerate(self.blocks)
        return {f"blocks.{number}.{name}": axis for number, x in pairs for name, axis in x.place_axes.items()}

    @property
    def rewindable(self) -> int:
        """Largest count that every block can take back, and every row has."""
        return min(*(block.rewindable for block in self.blocks), self.length - self._longest_padding)

    def rewind(self, count: int) -> "DecoderState":
        """Return the state without the last `count` tokens of each row.

        Without an undo log every block must be a KV cache, no window may have dropped keys, and no convolution may mix
        neighbors. With it the tokens of the last step can be taken back, whatever the kinds.
        """
        self._require_rewindable(count)
        return replace(self, blocks=tuple(block.rewind(count) for block in self.blocks))

    def settled(self) -> "DecoderState":
        """Return the state with every block settled."""
        return replace(self, blocks=tuple(block.settled() for block in self.blocks))

    def with_undo_log(self) -> "DecoderState":
        """Return a state whose steps are recorded, so that `rewind` takes back tokens of the last one for any kind.

        The record holds the state before that step, and the queries, keys and values of its tokens.
        """
        return replace(self, blocks=tuple(block.with_undo_log() for block in self.blocks))

    @property
    def _longest_padding(self) -> int:
        return 0 if self.padding is None else int(self.padding.max())


@register("decoder", DecoderConfig)
class Decoder(SequenceModel):
    """Logits of the next token, given those so far.

    Positions do not count padding, so a padded row gives the same result as the row without padding.
    """

    def __init__(self, config: DecoderConfig, tokens: int):
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(tokens, config.dim)
        # embeddings are multiplied by sqrt(dim): inputs then have unit variance, and so do the first logits of the
        # tied output layer
        nn.init.normal_(self.embed.weight, std=config.dim**-0.5)
        self.positions = PositionEmbedding(config, bidirectional=False)
        self.blocks = nn.ModuleList(
            decoder_block(config, self.positions, kind, activation=make_activation(config.activation))
            for kind in kinds_of_layers(config.attention, config.layers)
        )
        self.norm = nn.LayerNorm(config.dim)
        self.dropout = nn.Dropout(config.dropout)
        self.lm_head = nn.Linear(config.dim, tokens, bias=False)
        if config.tied:
            self.lm_head.weight = self.embed.weight

    def forward(
        self, tokens: Tensor, mask: Mask | None = None, at: Mask | None = None, packing: Packing | None = None
    ) -> Tensor:
        """Return logits (batch, time, tokens) after each token; padding may come first or last.

        With `at` (batch, time) only after the tokens where it is True: (selected, tokens). With `packing` each row
        holds several documents, which do not see each other. After `parallelize_sequence` all of them are those of one
        part of each row.
        """
        require_mask(mask, tokens)
        require_mask(at, tokens, "at", "logits are wanted")
        part = self.locate(tokens, mask=mask, packing=packing)
        if packing is not None or part is not None:
            x = self._embed_packed(tokens, mask, packing, part)
        else:
            x = self._embed(tokens, 0, mask, None)
        for block in self.blocks:
            x = block(x, mask, packing=packing, part=part)
        return self.lm_head(self.norm(x if at is None else x[at]))

    def start(self, inputs: Tensor, mask: Mask | None) -> DecoderState:
        """Return the state after a prompt (batch, time), which may be empty; padding must come first (prefill)."""
        require_mask(mask, inputs)
        blocks = tuple(as_decoder_block(block).start(inputs.shape[0], self.config.max_length) for block in self.blocks)
        if not inputs.shape[1]:
            return DecoderState(blocks)
        if mask is not None and values_readable(mask) and bool((mask[:, :-1] & ~mask[:, 1:]).any()):
            raise ValueError("mask must be True at the last tokens of each row: a prompt needs its padding first")
        if mask is None:
            return self._advance(inputs, DecoderState(blocks), None)[1]
        padding = (~mask).sum(1)
        blocks = tuple(replace(block, offsets=padding) for block in blocks)  # so that no position is beyond max_length
        return replace(self._advance(inputs, DecoderState(blocks), mask)[1], padding=padding)

    def step(self, tokens: Rows, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Return logits (rows, tokens) after one more token per row, and the new state."""
        x, state = self._advance(tokens[:, None], state, None)
        return self.lm_head(self.norm(x))[:, 0], state

    def extend(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Return logits (rows, time, tokens) after each of several more tokens per row, and the new state."""
        x, state = self._advance(tokens, state, None)
        return self.lm_head(self.norm(x)), state

    def prefill(self, tokens: Tensor, state: DecoderState) -> DecoderState:
        """Return the state after several more tokens (rows, time): `extend` without logits, for a prompt in pieces."""
        return self._advance(tokens, state, None)[1]

    def cost(self, span: Span) -> Cost:
        """Return the cost of the blocks and the output layer; tied weights are counted once."""
        total = blocks_cost(self.blocks, span).within("blocks")
        lm_head = linear(self.lm_head, span.tokens)
        if self.config.tied:
            lm_head = replace(lm_head, parameters={})
        total += lm_head.within("lm_head")
        for name in ("embed", "positions", "norm"):
            total += parameters_only(self.get_submodule(name)).within(name)
        return total

    def _advance(self, tokens: Tensor, state: DecoderState, mask: Mask | None) -> tuple[Tensor, DecoderState]:
        x = self._embed(tokens, state.blocks[0].length, mask, state.padding)
        states = []
        for block, before in zip(self.blocks, state.blocks, strict=True):
            x, after = as_decoder_block(block).step(x, before, mask)
            states.append(after)
        return x, replace(state, blocks=tuple(states))

    def _embed(self, tokens: Tensor, start: int, mask: Mask | None, padding: Rows | None) -> Tensor:
        end = start + tokens.shape[1]
        require_length(end, self.config.max_length)
        x = self.embed(tokens) * self.config.dim**0.5
        if self.positions.added is None:
            return self.dropout(x)
        index = torch.arange(start, end, device=tokens.device)
        if padding is not None:
            index = index - padding[:, None]
        elif mask is not None:
            index = (mask.cumsum(1) - 1).clamp(min=0)
        return self.dropout(self.positions.add(x, index))

    def _embed_packed(
        self, tokens: Tensor, mask: Mask | None, packing: Packing | None, part: SequencePart | None
    ) -> Tensor:
        """Embed packed rows or a part of each row, whose positions do not count from the first token given."""
        require_length(tokens.shape[1] if part is None else part.total, self.config.max_length)
        x = self.embed(tokens) * self.config.dim**0.5
        if self.positions.added is None:
            return self.dropout(x)
        if packing is not None:
            return self.dropout(self.positions.add(x, packing.positions))
        assert part is not None
        return self.dropout(self.positions.add(x, part.positions(mask, tokens.device)))
