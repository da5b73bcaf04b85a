"""The encoder-only Transformer (BERT): bidirectional attention, trained to predict masked tokens.

    x = norm(tokens + positions + segments);   x = norm(x + attention(x));   x = norm(x + feed_forward(x));  ...
    token logits         = norm(gelu(transform x)) . token vectors + bias      the masked-token objective
    next-sentence logits = next_sentence_head tanh(pool x_first)               the next-sentence objective

With positions "learned", attention "softmax" and norm "after" it is exactly BERT, in Hugging Face's names:

    embed, positions.added.table, segments, norm         embeddings.{word, position, token_type}_embeddings, LayerNorm
    blocks.N.attention.{query, key, value, output}       encoder.layer.N.attention.self.{...}, attention.output.dense
    blocks.N.around_attention.norm                       encoder.layer.N.attention.output.LayerNorm
    blocks.N.feed_forward.{up, down}                     encoder.layer.N.{intermediate.dense, output.dense}
    blocks.N.around_feed_forward.norm                    encoder.layer.N.output.LayerNorm
    pool                                                 pooler.dense
    transform, transform_norm, lm_head                   cls.predictions.{transform.dense, transform.LayerNorm, decoder}
    next_sentence_head                                   cls.seq_relationship

Paper: https://arxiv.org/abs/1810.04805.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from qkv.attention.parallel.group import SequencePart
from qkv.cost import Cost, Span, linear, parameters_only
from qkv.errors import unknown_name_error
from qkv.layers import PostNorm, PreNorm, SequenceModel
from qkv.models.attention_pattern import kinds_of_layers
from qkv.models.builders import PositionEmbedding, blocks_cost, encoder_block
from qkv.models.registry import register
from qkv.models.validation import require_at_least, require_length, require_mask, values_readable
from qkv.shapes import Hidden, Mask

INIT_STD = 0.02
"""Standard deviation of the initial token and segment embeddings."""
UNPAD_BELOW = 7 / 8
"""Fraction of real tokens below which unpadding pays."""
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
    """Width of the feed-forward layers; 0: no feed-forward layers."""
    layers: int = 2
    """Number of blocks."""
    dropout: float = 0.1
    """Dropout probability on every residual path."""
    attention: str = "softmax"
    """Kind of self-attention, such as taylor(order=4), or a pattern of kinds over the layers: 3*linear,softmax."""
    positions: str = "learned"
    """Position scheme, or none."""
    norm: str = "after"
    """after (post-norm, as BERT) or before (pre-norm)."""
    epsilon: float = 1e-12
    """Epsilon of every norm; default: BERT's."""
    pretraining: bool = True
    """Whether to build the heads for masked tokens and next sentences; without them the outputs are vectors."""
    max_length: int = 128
    """Longest sequence."""

    def __post_init__(self) -> None:
        require_at_least(1, self, "dim", "heads", "layers", "max_length")
        require_at_least(0, self, "hidden_dim")
        if self.norm not in NORMS:
            raise unknown_name_error("norm", self.norm, NORMS)
        if not self.epsilon > 0:
            raise ValueError(f"epsilon must be more than 0, got {self.epsilon}")

    @property
    def convolution(self) -> int:
        """Width of the short convolutions: always 0, since BERT has none."""
        return 0


@register("encoder", EncoderConfig)
class Encoder(SequenceModel):
    """Contextual token vectors, and the logits of BERT's two pretraining heads.

    `tokens` and `segments` are vocabulary sizes; BERT marks the first and the second sentence by 2 segments.
    Padding has exactly no influence, at any position, and positions do not count it.
    """

    def __init__(self, config: EncoderConfig, tokens: int, segments: int = 2):
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(tokens, config.dim)
        self.segments = nn.Embedding(segments, config.dim)
        self.positions = PositionEmbedding(config, bidirectional=True)
        residual = partial(NORMS[config.norm], config.dim, config.dropout, config.epsilon)
        self.blocks = nn.ModuleList(
            encoder_block(config, self.positions, kind, residual)
            for kind in kinds_of_layers(config.attention, config.layers)
        )
        # post-norm blocks norm their outputs, so this one norms the input; with pre-norm it norms the last output
        self.norm = nn.LayerNorm(config.dim, eps=config.epsilon)
        self.dropout = nn.Dropout(config.dropout)
        self.pool = nn.Linear(config.dim, config.dim)
        if config.pretraining:
            self.transform = nn.Linear(config.dim, config.dim)
            self.transform_norm = nn.LayerNorm(config.dim, eps=config.epsilon)
            self.lm_head = nn.Linear(config.dim, tokens)
            self.next_sentence_head = nn.Linear(config.dim, 2)
            self.lm_head.weight = self.embed.weight
            nn.init.zeros_(self.lm_head.bias)
        for table in (self.embed, self.segments):
            nn.init.normal_(table.weight, std=INIT_STD)
        # fixed sinusoids have amplitude 1: scale the small initial embeddings up to it
        added = self.positions.added
        self._scale = 1.0 if added is None or any(True for _ in added.parameters()) else 1 / INIT_STD

    def forward(
        self, tokens: Tensor, segments: Tensor | None = None, mask: Mask | None = None, at: Mask | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return token logits (batch, time, tokens) and next-sentence logits (batch, 2), where index 0 is "is next".

        With `at` (batch, time), token logits only where it is True: (selected, tokens). Without pretraining heads,
        return the vectors (batch, time, dim) and the pooled first one (batch, dim).
        """
        require_mask(at, tokens, "at", "logits are wanted")
        part = self.locate(tokens, segments=segments, mask=mask)
        *_, x = self._hidden_states(tokens, segments, mask, part)
        pooled = self.pool_first(x, mask) if part is None else self._pool_part(x, mask, part)
        x = x if at is None else x[at]
        return (self.token_logits(x), self.next_sentence_head(pooled)) if self.config.pretraining else (x, pooled)

    def encode(self, tokens: Tensor, segments: Tensor | None = None, mask: Mask | None = None) -> Hidden:
        """Return the vector of every token after the last block."""
        *_, last = self._hidden_states(tokens, segments, mask, self.locate(tokens, segments=segments, mask=mask))
        return last

    def hidden_states(self, tokens: Tensor, segments: Tensor | None = None, mask: Mask | None = None) -> list[Hidden]:
        """Return the input of the first block and the output of each block: `layers` + 1 tensors."""
        part = self.locate(tokens, segments=segments, mask=mask)
        return list(self._hidden_states(tokens, segments, mask, part))

    def pool_first(self, x: Hidden, mask: Mask | None = None) -> Float[Tensor, "batch dim"]:
        """Return tanh(pool(vector of the first real token)), which pretraining makes a summary of the row."""
        if not x.shape[1]:
            raise ValueError(f"rows must have at least one token to be pooled, got vectors of shape {tuple(x.shape)}")
        require_mask(mask, x)
        first = x[:, 0] if mask is None else x[torch.arange(x.shape[0], device=x.device), mask.int().argmax(1)]
        return torch.tanh(self.pool(first))

    def _pool_part(self, x: Hidden, mask: Mask | None, part: SequencePart) -> Float[Tensor, "batch dim"]:
        """Return `pool_first` of whole rows, at every process, from one part of each row."""
        batch = x.shape[0]
        seen = x.new_ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
        padded = functional.pad(x, (0, 0, 0, 1))  # an empty part has no first token
        own = padded[torch.arange(batch, device=x.device), functional.pad(seen, (0, 1)).int().argmax(1)]
        (firsts, real), binding = part.gather((own, seen.any(1)), causal=False)
        rank = real.int().argmax(0)  # of the first part with a real token
        return torch.tanh(self.pool(binding(firsts[rank, torch.arange(batch, device=x.device)])))

    def token_logits(self, x: Float[Tensor, "... dim"]) -> Float[Tensor, "... tokens"]:
        """Return the logits of the masked-token head for these vectors."""
        if not self.config.pretraining:
            raise ValueError("this Encoder has no head for masked tokens; build it with pretraining=True")
        return self.lm_head(self.transform_norm(functional.gelu(self.transform(x))))

    def cost(self, span: Span) -> Cost:
        """Return the cost of blocks, pooling and, if present, both heads; tied weights are counted once."""
        blocks = blocks_cost(self.blocks, replace(span, causal=False))
        total = replace(blocks, state={}).within("blocks")  # an encoder keeps no state
        total += linear(self.pool, span.batch).within("pool")
        for name in ("embed", "segments", "positions", "norm"):
            total += parameters_only(self.get_submodule(name)).within(name)
        if self.config.pretraining:
            lm_head = linear(self.lm_head, span.tokens)
            bias = {name: count for name, count in lm_head.parameters.items() if name == "bias"}
            total += linear(self.transform, span.tokens).within("transform")
            total += parameters_only(self.transform_norm).within("transform_norm")
            total += replace(lm_head, parameters=bias).within("lm_head")
            total += linear(self.next_sentence_head, span.batch).within("next_sentence_head")
        return total

    def _hidden_states(
        self, tokens: Tensor, segments: Tensor | None, mask: Mask | None, part: SequencePart | None
    ) -> Iterator[Hidden]:
        require_mask(mask, tokens)
        # attention without a mask is faster, and so are rows without padding; on a GPU finding them needs a sync
        real = None
        if mask is not None and values_readable(mask):
            mask = None if part is None and bool(mask.all()) else mask  # all parts must have a mask, or none
            real = self._real_token_indices(mask) if mask is not None and mask.device.type == "cpu" else None
        after = self.config.norm == "after"
        x = self._embed(tokens, segments, mask, part)
        x = self.dropout(self.norm(x) if after else x)
        yield x
        for number, block in enumerate(self.blocks, 1):
            x = block(x, mask, real, part)
            yield self.norm(x) if not after and number == len(self.blocks) else x

    def _real_token_indices(self, mask: Mask) -> Tensor | None:
        """Return the indices of the real tokens in the flattened batch, or None if unpadding does not pay."""
        real = mask.flatten().nonzero()[:, 0]
        return None if len(real) > UNPAD_BELOW * mask.numel() else real

    def _embed(self, tokens: Tensor, segments: Tensor | None, mask: Mask | None, part: SequencePart | None) -> Hidden:
        require_length(tokens.shape[1] if part is None else part.total, self.config.max_length)
        x = self._scale * self.embed(tokens)
        x = x + (self.segments.weight[0] if segments is None else self.segments(segments))
        if self.positions.added is None:
            return x
        if part is not None:
            return self.positions.add(x, part.positions(mask, tokens.device))
        if mask is None:
            return self.positions.add(x, torch.arange(tokens.shape[1], device=tokens.device))
        own = (mask.cumsum(1) - 1).clamp(min=0)
        return self.positions.add(x, own)


def mean_pool(x: Hidden, mask: Mask | None = None) -> Float[Tensor, "batch dim"]:
    """Return the mean of the token vectors of each row without padding, the usual sentence embedding.

    A row of padding only has the vector 0.
    """
    if mask is None:
        return x.mean(1)
    require_mask(mask, x)
    total = x.masked_fill(~mask[:, :, None], 0).sum(1)
    return total / mask.sum(1, keepdim=True).clamp(min=1)
