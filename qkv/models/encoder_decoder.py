"""The Transformer that maps one sequence to another: an encoder reads, a decoder writes and looks back at it."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from qkv.cost import Cost, Span, linear, parameters_only
from qkv.layers import Context, HeadsState
from qkv.models.builders import Places, as_decoder_block, cost_of_blocks, decoder_block, encoder_block
from qkv.models.masks import may_look, require_mask
from qkv.models.registry import register
from qkv.models.validation import require_at_least, require_length
from qkv.shapes import Mask, Rows


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
    """Width inside the feed-forward layers; 0: there are none."""
    encoder_layers: int = 4
    """Blocks that read."""
    decoder_layers: int = 2
    """Blocks that write."""
    dropout: float = 0.1
    """Share of numbers dropped on every residual path while training."""
    attention: str = "softmax"
    """Kind of self-attention, such as taylor or taylor(order=4)."""
    cross: str = "softmax"
    """Kind of attention from decoder to encoder."""
    positions: str = "sinusoidal"
    """Position scheme, or none."""
    convolution: int = 0
    """Width of a short convolution before each self-attention; 0: there is none."""
    max_length: int = 128
    """The longest sequence, on either side."""

    def __post_init__(self) -> None:
        require_at_least(1, self, "dim", "heads", "decoder_layers", "max_length")
        require_at_least(0, self, "hidden_dim", "encoder_layers", "convolution")


@dataclass(frozen=True)
class EncoderDecoderState:
    """What is remembered while writing: per block its state and its view of the source."""

    blocks: tuple[HeadsState, ...]
    contexts: tuple[Context, ...]

    def select(self, rows: Rows) -> "EncoderDecoderState":
        """The state of these sequences."""
        blocks = tuple(state.select(rows) for state in self.blocks)
        return EncoderDecoderState(blocks, tuple(context.select(rows) for context in self.contexts))


@register("encoder_decoder", EncoderDecoderConfig)
class EncoderDecoder(nn.Module):
    """logits of the next target token, given the source and the target so far."""

    def __init__(self, config: EncoderDecoderConfig, sources: int, targets: int):
        super().__init__()
        self.config = config
        self.read = nn.Embedding(sources, config.dim, padding_idx=0)
        self.write = nn.Embedding(targets, config.dim, padding_idx=0)
        self.read_places = Places(config, bidirectional=True)
        self.write_places = Places(config, bidirectional=False)
        self.encoder = nn.ModuleList(encoder_block(config, self.read_places) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(
            decoder_block(config, self.write_places, config.cross) for _ in range(config.decoder_layers)
        )
        self.encoder_norm = nn.LayerNorm(config.dim)
        self.decoder_norm = nn.LayerNorm(config.dim)
        self.dropout = nn.Dropout(config.dropout)
        self.predict = nn.Linear(config.dim, targets)
        for table in (self.read, self.write):
            nn.init.normal_(table.weight, std=config.dim**-0.5)

    def forward(self, source: Tensor, target: Tensor, mask: Mask | None = None) -> Tensor:
        """Logits (batch, target time, targets) after each token of `target`; `mask` hides source padding.

        Padding at the end of a target needs no mask: no token before it can see it.
        """
        contexts = self._remember(source, mask)
        x = self._embed(self.write, self.write_places, target, 0)
        for block, context in zip(self.decoder, contexts, strict=True):
            x = block(x, context=context)
        return self.predict(self.decoder_norm(x))

    def start(self, inputs: Tensor, mask: Mask | None) -> EncoderDecoderState:
        """The state before the first target token."""
        contexts = self._remember(inputs, mask)
        capacity = self.config.max_length
        states = tuple(as_decoder_block(block).start(inputs.shape[0], capacity) for block in self.decoder)
        return EncoderDecoderState(states, contexts)

    def step(self, tokens: Rows, state: EncoderDecoderState) -> tuple[Tensor, EncoderDecoderState]:
        """Logits (rows, targets) after one more token each."""
        x = self._embed(self.write, self.write_places, tokens[:, None], state.blocks[0].length)
        following = []
        for block, before, context in zip(self.decoder, state.blocks, state.contexts, strict=True):
            x, after = as_decoder_block(block).step(x, before, context=context)
            following.append(after)
        return self.predict(self.decoder_norm(x))[:, 0], EncoderDecoderState(tuple(following), state.contexts)

    def cost(self, span: Span) -> Cost:
        """Encoder over the source (`span.context`), decoder over the target, prediction."""
        if span.context is None:
            raise ValueError("span.context must be the number of source tokens, got None")
        reading = cost_of_blocks(self.encoder, Span(span.batch, span.context))
        total = replace(reading, state={}).within("encoder")  # what is read is not carried along
        total += cost_of_blocks(self.decoder, span).within("decoder")
        total += linear(self.predict, span.tokens).within("predict")
        for name in ("read", "write", "read_places", "write_places", "encoder_norm", "decoder_norm"):
            total += parameters_only(self.get_submodule(name)).within(name)
        return total

    def _remember(self, source: Tensor, mask: Mask | None) -> tuple[Context, ...]:
        require_mask(mask, source)
        # unmasked attention is the faster one; on a GPU looking costs more
        look = mask is not None and mask.device.type == "cpu" and may_look(mask)
        mask = None if mask is None or (look and bool(mask.all())) else mask
        x = self._embed(self.read, self.read_places, source, 0)
        for block in self.encoder:
            x = block(x, mask)
        x = self.encoder_norm(x)
        return tuple(as_decoder_block(block).project_context(x, mask) for block in self.decoder)

    def _embed(self, table: nn.Embedding, places: Places, tokens: Tensor, start: int) -> Tensor:
        end = start + tokens.shape[1]
        require_length(end, self.config.max_length)
        x = table(tokens) * self.config.dim**0.5
        if places.added is not None:
            x = places.added(x, torch.arange(start, end, device=tokens.device))
        return self.dropout(x)
