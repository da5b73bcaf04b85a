"""The Transformer that continues a sequence: every token sees those before it."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from qkv.cost import Cost, Span, linear, parameters_only
from qkv.layers import HeadsState, Packing
from qkv.layers.activation import make_activation
from qkv.models.builders import Places, as_decoder_block, cost_of_blocks, decoder_block
from qkv.models.masks import may_look, require_mask
from qkv.models.registry import register
from qkv.models.validation import require_at_least, require_length
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
    """Width inside the feed-forward layers; 0: there are none."""
    layers: int = 2
    """Blocks."""
    dropout: float = 0.0
    """Share of numbers dropped on every residual path while training."""
    attention: str = "softmax"
    """Kind of self-attention, such as taylor or taylor(order=4)."""
    positions: str = "rope"
    """Position scheme, or none."""
    convolution: int = 0
    """Width of a short convolution before each attention; 0: there is none."""
    tied: bool = True
    """Whether tokens are predicted with the vectors that they are read with."""
    activation: str = "gelu"
    """Inside the feed-forward layers: gelu, gelu_tanh (GPT-2's), relu, ..."""
    max_length: int = 1024
    """The longest sequence."""

    def __post_init__(self) -> None:
        require_at_least(1, self, "dim", "heads", "layers", "max_length")
        require_at_least(0, self, "hidden_dim", "convolution")
        make_activation(self.activation)


@dataclass(frozen=True)
class DecoderState:
    """What is remembered of the tokens so far, per block."""

    blocks: tuple[HeadsState, ...]
    padding: Rows | None = None
    """How many tokens of each row were padding; None: none."""

    @property
    def bytes(self) -> int:
        """Bytes of all blocks."""
        return sum(state.bytes for state in self.blocks)

    def select(self, rows: Rows) -> "DecoderState":
        """The state of these sequences."""
        padding = None if self.padding is None else self.padding[rows]
        return DecoderState(tuple(state.select(rows) for state in self.blocks), padding)


@register("decoder", DecoderConfig)
class Decoder(nn.Module):
    """logits of the next token, given those so far.

    Padding is not counted in a token's place, so a padded row means what it would mean by itself.
    """

    def __init__(self, config: DecoderConfig, tokens: int):
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(tokens, config.dim)
        # read times sqrt(dim): a token enters with numbers of size 1, so that no first attention drowns it, and the
        # same vectors, tied, start with logits of size 1
        nn.init.normal_(self.embed.weight, std=config.dim**-0.5)
        self.places = Places(config, bidirectional=False)
        self.blocks = nn.ModuleList(
            decoder_block(config, self.places, activation=make_activation(config.activation))
            for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.dim)
        self.dropout = nn.Dropout(config.dropout)
        self.predict = nn.Linear(config.dim, tokens, bias=False)
        if config.tied:
            self.predict.weight = self.embed.weight

    def forward(
        self, tokens: Tensor, mask: Mask | None = None, at: Mask | None = None, packing: Packing | None = None
    ) -> Tensor:
        """Logits (batch, time, tokens) after each token; padding may come first or last.

        With `at` (batch, time) only after the tokens where it is True: (how many, tokens). With `packing` each row
        holds several documents, which mean what each would mean by itself.
        """
        require_mask(mask, tokens)
        require_mask(at, tokens, "at", "logits are wanted")
        x = self._embed(tokens, 0, mask, None) if packing is None else self._embed_packed(tokens, packing)
        for block in self.blocks:
            x = block(x, mask, packing=packing)
        return self.predict(self.norm(x if at is None else x[at]))

    def start(self, inputs: Tensor, mask: Mask | None) -> DecoderState:
        """The state after a prompt (batch, time), which may be empty; padding has to come first."""
        require_mask(mask, inputs)
        blocks = tuple(as_decoder_block(block).start(inputs.shape[0], self.config.max_length) for block in self.blocks)
        if not inputs.shape[1]:
            return DecoderState(blocks)
        if mask is not None and may_look(mask) and bool((mask[:, :-1] & ~mask[:, 1:]).any()):
            raise ValueError("mask must be True at the last tokens of each row: a prompt needs its padding first")
        state = self._advance(inputs, DecoderState(blocks), mask)[1]
        return state if mask is None else replace(state, padding=(~mask).sum(1))

    def step(self, tokens: Rows, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Logits (rows, tokens) after one more token each."""
        x, state = self._advance(tokens[:, None], state, None)
        return self.predict(self.norm(x))[:, 0], state

    def cost(self, span: Span) -> Cost:
        """Blocks and prediction; a table that serves twice is counted once."""
        total = cost_of_blocks(self.blocks, span).within("blocks")
        predict = linear(self.predict, span.tokens)
        if self.config.tied:
            predict = replace(predict, parameters={})
        total += predict.within("predict")
        for name in ("embed", "places", "norm"):
            total += parameters_only(self.get_submodule(name)).within(name)
        return total

    def _advance(self, tokens: Tensor, state: DecoderState, mask: Mask | None) -> tuple[Tensor, DecoderState]:
        x = self._embed(tokens, state.blocks[0].length, mask, state.padding)
        following = []
        for block, before in zip(self.blocks, state.blocks, strict=True):
            x, after = as_decoder_block(block).step(x, before, mask)
            following.append(after)
        return x, replace(state, blocks=tuple(following))

    def _embed(self, tokens: Tensor, start: int, mask: Mask | None, padding: Rows | None) -> Tensor:
        end = start + tokens.shape[1]
        require_length(end, self.config.max_length)
        x = self.embed(tokens) * self.config.dim**0.5
        if self.places.added is None:
            return self.dropout(x)
        index = torch.arange(start, end, device=tokens.device)
        if padding is not None:
            own = index - padding[:, None]
        elif mask is not None:
            own = (mask.cumsum(1) - 1).clamp(min=0)
        else:
            return self.dropout(self.places.added(x, index))
        return self.dropout(self._add_own(x, own))

    def _embed_packed(self, tokens: Tensor, packing: Packing) -> Tensor:
        require_length(tokens.shape[1], self.config.max_length)
        x = self.embed(tokens) * self.config.dim**0.5
        return self.dropout(x if self.places.added is None else self._add_own(x, packing.positions))

    def _add_own(self, x: Tensor, own: Tensor) -> Tensor:
        """Each row with places of its own: a scheme is told one index for all rows, so all tokens go as one row."""
        assert self.places.added is not None
        added: Tensor = self.places.added(x.flatten(0, 1)[None], own.flatten())
        return added[0].view_as(x)
