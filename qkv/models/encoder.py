"""The Transformer that reads: every token sees all others (BERT), and what is hidden is filled in.

    x = norm(tokens + positions + segments);   x = norm(x + attention(x));   x = norm(x + feed_forward(x));  ...
    said of a token  = norm(gelu(transform x)) . its vector + bias             the masked-token objective
    said of the row  = follow tanh(pool x_first)                               the next-sentence objective

With positions "learned", attention "softmax" and norm "after" it is BERT to the last tensor, as Hugging Face lays it
out:

    embed, places.added.table, segments, norm            embeddings.{word, position, token_type}_embeddings, LayerNorm
    blocks.N.attention.{query, key, value, output}       encoder.layer.N.attention.self.{...}, attention.output.dense
    blocks.N.around_attention.norm                       encoder.layer.N.attention.output.LayerNorm
    blocks.N.feed_forward.{enter, leave}                 encoder.layer.N.{intermediate.dense, output.dense}
    blocks.N.around_feed_forward.norm                    encoder.layer.N.output.LayerNorm
    pool                                                 pooler.dense
    transform, transform_norm, predict, follow           cls.predictions.{transform.dense, transform.LayerNorm,
                                                         decoder}, cls.seq_relationship

Paper: https://arxiv.org/abs/1810.04805.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from qkv.cost import Cost, Span, linear, parameters_only
from qkv.errors import unknown_name_error
from qkv.layers import PostNorm, PreNorm
from qkv.models.builders import Places, cost_of_blocks, encoder_block
from qkv.models.masks import may_look, require_mask
from qkv.models.registry import register
from qkv.models.validation import require_at_least, require_length
from qkv.shapes import Hidden, Mask

FIRST = 0.02
"""Standard deviation of the first vectors of tokens and segments."""
WORTH = 7 / 8
"""Share of real tokens from which on it is not worth while to take padding out of the rows."""
NORMS = {"after": PostNorm, "before": PreNorm}


@dataclass(frozen=True)
class EncoderConfig:
    """Sizes and kinds of an encoder-only Transformer."""

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
    dropout: float = 0.1
    """Share of numbers dropped on every residual path while training."""
    attention: str = "softmax"
    """Kind of self-attention, such as taylor or taylor(order=4)."""
    positions: str = "learned"
    """Position scheme, or none."""
    norm: str = "after"
    """Where blocks norm: after the sum, as BERT, or before each layer."""
    epsilon: float = 1e-12
    """What every norm adds to the variance; BERT's is this small."""
    pretraining: bool = True
    """Whether there are heads for masked tokens and next sentences; without them it gives vectors only."""
    max_length: int = 128
    """The longest sequence."""

    def __post_init__(self) -> None:
        require_at_least(1, self, "dim", "heads", "layers", "max_length")
        require_at_least(0, self, "hidden_dim")
        if self.norm not in NORMS:
            raise unknown_name_error("norm", self.norm, NORMS)
        if not self.epsilon > 0:
            raise ValueError(f"epsilon must be more than 0, got {self.epsilon}")

    @property
    def convolution(self) -> int:
        """There is none: BERT has no short convolutions."""
        return 0


@register("encoder", EncoderConfig)
class Encoder(nn.Module):
    """Vectors of tokens that have seen all others, and what the two heads of BERT's pretraining make of them.

    `tokens` and `segments` are how many of each there are: BERT tells a first from a second sentence by 2 segments.
    Padding has exactly no influence, wherever it stands, and is not counted in a token's place.
    """

    def __init__(self, config: EncoderConfig, tokens: int, segments: int = 2):
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(tokens, config.dim)
        self.segments = nn.Embedding(segments, config.dim)
        self.places = Places(config, bidirectional=True)
        residual = partial(NORMS[config.norm], config.dim, config.dropout, config.epsilon)
        self.blocks = nn.ModuleList(encoder_block(config, self.places, residual) for _ in range(config.layers))
        # of what comes in, where blocks norm what they give; else of what the last one gives
        self.norm = nn.LayerNorm(config.dim, eps=config.epsilon)
        self.dropout = nn.Dropout(config.dropout)
        self.pool = nn.Linear(config.dim, config.dim)
        if config.pretraining:
            self.transform = nn.Linear(config.dim, config.dim)
            self.transform_norm = nn.LayerNorm(config.dim, eps=config.epsilon)
            self.predict = nn.Linear(config.dim, tokens)
            self.follow = nn.Linear(config.dim, 2)
            self.predict.weight = self.embed.weight
            nn.init.zeros_(self.predict.bias)
        for table in (self.embed, self.segments):
            nn.init.normal_(table.weight, std=FIRST)
        # waves that are not learned have size 1 and would drown vectors that begin as small as learned positions do
        added = self.places.added
        self._scale = 1.0 if added is None or any(True for _ in added.parameters()) else 1 / FIRST

    def forward(
        self, tokens: Tensor, segments: Tensor | None = None, mask: Mask | None = None, at: Mask | None = None
    ) -> tuple[Tensor, Tensor]:
        """Logits of tokens (batch, time, tokens) and of "is no next sentence" (batch, 2), index 0: it is the next.

        With `at` (batch, time) tokens only where it is True: (how many, tokens). Without pretraining heads the two are
        the vectors (batch, time, dim) and the pooled first one (batch, dim).
        """
        require_mask(at, tokens, "at", "logits are wanted")
        x = self.read(tokens, segments, mask)
        pooled = self.pooled(x, mask)
        x = x if at is None else x[at]
        return (self.fill(x), self.follow(pooled)) if self.config.pretraining else (x, pooled)

    def read(self, tokens: Tensor, segments: Tensor | None = None, mask: Mask | None = None) -> Hidden:
        """The vector of every token after the last block."""
        *_, last = self._pass(tokens, segments, mask)
        return last

    def states(self, tokens: Tensor, segments: Tensor | None = None, mask: Mask | None = None) -> list[Hidden]:
        """What goes into the first block and what comes out of each: `layers` + 1 tensors."""
        return list(self._pass(tokens, segments, mask))

    def pooled(self, x: Hidden, mask: Mask | None = None) -> Float[Tensor, "batch dim"]:
        """tanh(pool(the vector of the first real token)), which pretraining makes speak for the whole row."""
        if not x.shape[1]:
            raise ValueError(f"rows must have at least one token to be pooled, got vectors of shape {tuple(x.shape)}")
        require_mask(mask, x)
        first = x[:, 0] if mask is None else x[torch.arange(x.shape[0], device=x.device), mask.int().argmax(1)]
        return torch.tanh(self.pool(first))

    def fill(self, x: Float[Tensor, "... dim"]) -> Float[Tensor, "... tokens"]:
        """Logits of the tokens that could stand where these vectors are."""
        if not self.config.pretraining:
            raise ValueError("this Encoder has no head for masked tokens; build it with pretraining=True")
        return self.predict(self.transform_norm(functional.gelu(self.transform(x))))

    def cost(self, span: Span) -> Cost:
        """Blocks, pooling and, if they are there, both heads at every token; a tied table is counted once."""
        reading = cost_of_blocks(self.blocks, replace(span, causal=False))
        total = replace(reading, state={}).within("blocks")  # there is nothing to carry along
        total += linear(self.pool, span.batch).within("pool")
        for name in ("embed", "segments", "places", "norm"):
            total += parameters_only(self.get_submodule(name)).within(name)
        if self.config.pretraining:
            predict = linear(self.predict, span.tokens)
            bias = {name: count for name, count in predict.parameters.items() if name == "bias"}
            total += linear(self.transform, span.tokens).within("transform")
            total += parameters_only(self.transform_norm).within("transform_norm")
            total += replace(predict, parameters=bias).within("predict")
            total += linear(self.follow, span.batch).within("follow")
        return total

    def _pass(self, tokens: Tensor, segments: Tensor | None, mask: Mask | None) -> Iterator[Hidden]:
        require_mask(mask, tokens)
        # unmasked attention is the faster one; so are real tokens by themselves, but to find them keeps a GPU waiting
        look = mask is not None and may_look(mask)
        mask = None if mask is None or (look and bool(mask.all())) else mask
        real = self._worth_taking_out(mask) if mask is not None and look and mask.device.type == "cpu" else None
        after = self.config.norm == "after"
        x = self._sum(tokens, segments, mask)
        x = self.dropout(self.norm(x) if after else x)
        yield x
        for number, block in enumerate(self.blocks, 1):
            x = block(x, mask, real)
            yield self.norm(x) if not after and number == len(self.blocks) else x

    def _worth_taking_out(self, mask: Mask) -> Tensor | None:
        """The real tokens, numbered over all rows, if the rest is worth leaving out."""
        real = mask.flatten().nonzero()[:, 0]
        return None if len(real) > WORTH * mask.numel() else real

    def _sum(self, tokens: Tensor, segments: Tensor | None, mask: Mask | None) -> Hidden:
        require_length(tokens.shape[1], self.config.max_length)
        x = self._scale * self.embed(tokens)
        x = x + (self.segments.weight[0] if segments is None else self.segments(segments))
        if self.places.added is None:
            return x
        if mask is None:
            return self.places.added(x, torch.arange(tokens.shape[1], device=tokens.device))
        own = (mask.cumsum(1) - 1).clamp(min=0)
        # a scheme is told one index for all rows; where each row has its own, all tokens go as one row
        return self.places.added(x.flatten(0, 1)[None], own.flatten())[0].view_as(x)


def mean_of_tokens(x: Hidden, mask: Mask | None = None) -> Float[Tensor, "batch dim"]:
    """The mean of the vectors of a row's tokens, without padding: the usual vector of a sentence.

    A row of padding alone has the vector 0.
    """
    if mask is None:
        return x.mean(1)
    require_mask(mask, x)
    total = x.masked_fill(~mask[:, :, None], 0).sum(1)
    return total / mask.sum(1, keepdim=True).clamp(min=1)
