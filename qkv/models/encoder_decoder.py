"""The encoder-decoder Transformer: maps a source sequence to a target sequence.

Paper: https://arxiv.org/abs/1706.03762.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from qkv.attention.state import RaggedState, check_joinable, join_offsets, join_parts, under_prefix, with_prefix
from qkv.cost import Cost, Span, linear, parameters_only
from qkv.layers import Context, HeadsState
from qkv.models.attention_pattern import kinds_of_layers, split_encoder_decoder
from qkv.models.builders import PositionEmbedding, as_decoder_block, blocks_cost, decoder_block, encoder_block
from qkv.models.registry import register
from qkv.models.validation import require_at_least, require_length, require_mask, values_readable
from qkv.shapes import Mask, Rows

TIED_INIT_STD = 0.02
"""Standard deviation of tied embeddings: longer ones make an untrained model repeat its last token."""


@dataclass(frozen=True)
class EncoderDecoderConfig:
    """Sizes and kinds of an encoder-decoder Transformer."""

    dim: int = 256
    """Width of the model."""
    heads: int = 4
    """Attention heads; they share the width."""
    key_dim: int | None = None
    """Width of queries and keys in self-attention; None: dim / heads."""
    hidden_dim: int = 1024
    """Width of the feed-forward layers; 0: no feed-forward layers."""
    encoder_layers: int = 4
    """Number of encoder blocks."""
    decoder_layers: int = 2
    """Number of decoder blocks."""
    dropout: float = 0.1
    """Dropout probability on every residual path."""
    attention: str = "softmax"
    """Kind of self-attention, such as taylor(order=4), with gates after +; or a pattern over the layers; or both as
    ENCODER/DECODER."""
    cross: str = "softmax"
    """Kind of cross attention, from decoder to encoder."""
    positions: str = "sinusoidal"
    """Position scheme, or none."""
    convolution: int = 0
    """Width of a short convolution before each self-attention; 0: no convolution."""
    max_length: int = 128
    """Longest source or target."""
    tied: bool = False
    """Whether source embeddings, target embeddings and output layer are one table; needs one vocabulary for both."""

    def __post_init__(self) -> None:
        require_at_least(1, self, "dim", "heads", "decoder_layers", "max_length")
        require_at_least(0, self, "hidden_dim", "encoder_layers", "convolution")


@dataclass(frozen=True)
class EncoderDecoderState(RaggedState):
    """The decoding state: per block its self-attention state, and the keys and values of the source."""

    blocks: tuple[HeadsState, ...]
    contexts: tuple[Context, ...]
    padding: Rows | None = None
    """Padding in front of each row; None: no padding."""

    @property
    def length(self) -> int:
        """Number of places of the targets: tokens of the longest row, and padding that all rows have."""
        return self.blocks[0].length

    @property
    def rows(self) -> int:
        """Number of sequences."""
        return self.blocks[0].rows

    @property
    def bytes(self) -> int:
        """Size of the states of all blocks, and of the keys and values of the source."""
        return sum(part.bytes for part in (*self.blocks, *self.contexts))

    def select(self, rows: Rows) -> "EncoderDecoderState":
        """Return the state of these rows."""
        blocks = tuple(state.select(rows) for state in self.blocks)
        padding = None if self.padding is None else self.padding[rows]
        return EncoderDecoderState(blocks, tuple(context.select(rows) for context in self.contexts), padding)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of each block and context, and the padding."""
        named = {} if self.padding is None else {"padding": self.padding}
        for number, (block, context) in enumerate(zip(self.blocks, self.contexts, strict=True)):
            named |= with_prefix(f"blocks.{number}", block.tensors())
            named |= with_prefix(f"contexts.{number}", context.tensors())
        return named

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> "EncoderDecoderState":
        """Return a state of these tensors."""
        blocks = (x.with_tensors(under_prefix(f"blocks.{number}", tensors)) for number, x in enumerate(self.blocks))
        contexts = (
            x.with_tensors(under_prefix(f"contexts.{number}", tensors)) for number, x in enumerate(self.contexts)
        )
        return EncoderDecoderState(tuple(blocks), tuple(contexts), tensors.get("padding"))

    def join(self, *others: "EncoderDecoderState") -> "EncoderDecoderState":
        """Return one state of all rows; shorter targets and sources get padding in front."""
        states = (self, *others)
        check_joinable(states)
        blocks = join_parts("blocks", [state.blocks for state in states])
        contexts = join_parts("contexts", [state.contexts for state in states])
        lengths, rows = [state.length for state in states], [state.rows for state in states]
        padding = join_offsets([state.padding for state in states], lengths, rows, self.device)
        return EncoderDecoderState(blocks, contexts, padding)

    def compact(self) -> "EncoderDecoderState":
        """Return the state without the target and source places that no row needs."""
        state = super().compact()
        return replace(state, contexts=tuple(context.compact() for context in state.contexts))

    def _without_places(self, count: int, padding: Rows | None) -> "EncoderDecoderState":
        return EncoderDecoderState(tuple(block.drop_places(count) for block in self.blocks), self.contexts, padding)


@register("encoder_decoder", EncoderDecoderConfig)
class EncoderDecoder(nn.Module):
    """Logits of the next target token, given the source and the target so far."""

    def __init__(self, config: EncoderDecoderConfig, sources: int, targets: int):
        super().__init__()
        if config.tied and sources != targets:
            raise ValueError(
                f"tied=True needs one vocabulary for sources and targets (data.shared=true), got {sources} and "
                f"{targets} tokens"
            )
        self.config = config
        self.source_embedding = nn.Embedding(sources, config.dim, padding_idx=0)
        self.target_embedding = nn.Embedding(targets, config.dim, padding_idx=0)
        self.source_positions = PositionEmbedding(config, bidirectional=True)
        self.target_positions = PositionEmbedding(config, bidirectional=False)
        encoder, decoder = split_encoder_decoder(config.attention)
        self.encoder = nn.ModuleList(
            encoder_block(config, self.source_positions, kind)
            for kind in kinds_of_layers(encoder, config.encoder_layers, "encoder_layers")
        )
        self.decoder = nn.ModuleList(
            decoder_block(config, self.target_positions, kind, config.cross)
            for kind in kinds_of_layers(decoder, config.decoder_layers, "decoder_layers")
        )
        self.encoder_norm = nn.LayerNorm(config.dim)
        self.decoder_norm = nn.LayerNorm(config.dim)
        self.dropout = nn.Dropout(config.dropout)
        self.lm_head = nn.Linear(config.dim, targets)
        if config.tied:
            self.target_embedding.weight = self.lm_head.weight = self.source_embedding.weight
        for table in (self.source_embedding, self.target_embedding):
            nn.init.normal_(table.weight, std=TIED_INIT_STD if config.tied else config.dim**-0.5)

    def forward(self, source: Tensor, target: Tensor, mask: Mask | None = None) -> Tensor:
        """Return logits (batch, target time, targets) after each token of `target`; `mask` hides source padding.

        Padding at the end of a target needs no mask, since attention in the decoder is causal.
        """
        contexts = self._encode(source, mask)
        x = self._embed(self.target_embedding, self.target_positions, target, 0)
        for block, context in zip(self.decoder, contexts, strict=True):
            x = block(x, context=context)
        return self.lm_head(self.decoder_norm(x))

    def start(self, inputs: Tensor, mask: Mask | None) -> EncoderDecoderState:
        """Encode the source and return the state before the first target token."""
        contexts = self._encode(inputs, mask)
        capacity = self.config.max_length
        states = tuple(as_decoder_block(block).start(inputs.shape[0], capacity) for block in self.decoder)
        return EncoderDecoderState(states, contexts)

    def step(self, tokens: Rows, state: EncoderDecoderState) -> tuple[Tensor, EncoderDecoderState]:
        """Return logits (rows, targets) after one more token per row, and the new state."""
        x = self._embed(self.target_embedding, self.target_positions, tokens[:, None], state.length, state.padding)
        states = []
        for block, before, context in zip(self.decoder, state.blocks, state.contexts, strict=True):
            x, after = as_decoder_block(block).step(x, before, context=context)
            states.append(after)
        return self.lm_head(self.decoder_norm(x))[:, 0], EncoderDecoderState(
            tuple(states), state.contexts, state.padding
        )

    def cost(self, span: Span) -> Cost:
        """Return the cost of the encoder over the source (`span.context`), the decoder and the output layer.

        Tied weights are counted once.
        """
        if span.context is None:
            raise ValueError("span.context must be the number of source tokens, got None")
        encoder = blocks_cost(self.encoder, Span(span.batch, span.context))
        total = replace(encoder, state={}).within("encoder")  # the encoder keeps no state
        total += blocks_cost(self.decoder, span).within("decoder")
        lm_head = linear(self.lm_head, span.tokens)
        if self.config.tied:
            lm_head = replace(lm_head, parameters={"bias": lm_head.parameters["bias"]})
        total += lm_head.within("lm_head")
        embeddings = ("source_embedding", *(() if self.config.tied else ("target_embedding",)))
        for name in (*embeddings, "source_positions", "target_positions", "encoder_norm", "decoder_norm"):
            total += parameters_only(self.get_submodule(name)).within(name)
        return total

    def _encode(self, source: Tensor, mask: Mask | None) -> tuple[Context, ...]:
        require_mask(mask, source)
        # attention without a mask is faster; on a GPU reading the mask costs more than it saves
        if mask is not None and mask.device.type == "cpu" and values_readable(mask) and bool(mask.all()):
            mask = None
        x = self._embed(self.source_embedding, self.source_positions, source, 0)
        for block in self.encoder:
            x = block(x, mask)
        x = self.encoder_norm(x)
        return tuple(as_decoder_block(block).project_context(x, mask) for block in self.decoder)

    def _embed(
        self,
        table: nn.Embedding,
        positions: PositionEmbedding,
        tokens: Tensor,
        start: int,
        padding: Rows | None = None,
    ) -> Tensor:
        end = start + tokens.shape[1]
        require_length(end, self.config.max_length)
        x = table(tokens) * self.config.dim**0.5
        index = torch.arange(start, end, device=tokens.device)
        return self.dropout(positions.add(x, index if padding is None else index - padding[:, None]))
