"""Builders of Transformer blocks from a configuration: sizes, attention kind and position scheme."""

from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from qkv.attention import Attention, parse
from qkv.attention.feature_map import FeatureMap
from qkv.cost import Cost, Span
from qkv.layers import DecoderBlock, EncoderBlock, FeedForward, Heads, MultiHead, PreNorm, ShortConvolution
from qkv.layers.blocks import Residual
from qkv.layers.layer_spec import LayerSpec, read_layer
from qkv.positions import Positions, Rope, Sizes, incompatible_error, schemes
from qkv.shapes import Hidden

MAX_FEATURES = 2**22
"""Maximum number of features of a key; the recurrent state has a row for each."""


class BlockSizes(Protocol):
    """The part of a model's configuration that its blocks are built from."""

    @property
    def dim(self) -> int: ...  # noqa: D102
    @property
    def heads(self) -> int: ...  # noqa: D102
    @property
    def key_dim(self) -> int | None: ...  # noqa: D102
    @property
    def hidden_dim(self) -> int: ...  # noqa: D102
    @property
    def dropout(self) -> float: ...  # noqa: D102
    @property
    def attention(self) -> str: ...  # noqa: D102
    @property
    def positions(self) -> str: ...  # noqa: D102
    @property
    def convolution(self) -> int: ...  # noqa: D102
    @property
    def max_length(self) -> int: ...  # noqa: D102


class PositionEmbedding(nn.Module):
    """The positions of a stack of blocks: added to its input once, or applied inside the heads of every block.

    `added` is the scheme for the input, or None.
    """

    def __init__(self, config: BlockSizes, *, bidirectional: bool):
        super().__init__()
        self._sizes = Sizes(config.dim, config.heads, _key_dim(config), config.max_length, bidirectional)
        self._scheme = None if config.positions == "none" else schemes[config.positions]
        self.added: Positions | None = None
        if self._scheme is not None and "input" in self._scheme.gives:
            self.added = self._scheme.from_sizes(self._sizes)

    def add(self, x: Hidden, index: Tensor) -> Tensor:
        """Return x (batch, time, dim) with its positions added, (time,) or (batch, time); x itself if none are."""
        if self.added is None:
            return x
        if index.dim() == 1:
            return self.added(x, index)
        # joined rows: a scheme takes one index for all rows
        return self.added(x.flatten(0, 1)[None], index.flatten())[0].view_as(x)

    def for_heads(self) -> Positions | None:
        """Return a new position scheme for the heads of one block, or None if positions are added to the input."""
        if self._scheme is None or self.added is not None:
            return None
        return self._scheme.from_sizes(self._sizes)


def make_attention(name: str, key_dim: int) -> Attention:
    """Return the attention kind of this name; `key_dim` is used by kinds with weights."""
    attention = parse(name, key_dim=key_dim)
    features = attention.feature_dim(key_dim) if isinstance(attention, FeatureMap) else 0
    if features > MAX_FEATURES and torch.get_default_device().type != "meta":  # its cost can be counted all the same
        raise ValueError(
            f"attention={name!r} has {features:,} features with key_dim={key_dim}, but at most {MAX_FEATURES:,} "
            "are supported; use a lower order or a smaller key_dim"
        )
    return attention


def encoder_block(
    config: BlockSizes, positions: PositionEmbedding, kind: str, residual: Residual | None = None
) -> EncoderBlock:
    """Return a block of bidirectional self-attention and feed-forward; `residual` defaults to pre-norm."""
    scheme = positions.for_heads()  # before the attention: this order decides their random weights
    layer = read_layer(kind)
    attention = make_attention(layer.kind, _key_dim(config))
    _require_no_window(attention, "attention", "an encoder is bidirectional")
    _require_no_causal_parts(layer, attention)
    _require_bidirectional(attention, scheme)
    heads = _heads(config, scheme, attention, layer)
    return EncoderBlock(heads, _feed_forward(config), residual or _residual(config))


def decoder_block(
    config: BlockSizes,
    positions: PositionEmbedding,
    kind: str,
    cross: str | None = None,
    activation: nn.Module | None = None,
) -> DecoderBlock:
    """Return a block of causal self-attention, cross attention if `cross` names a kind, and feed-forward."""
    cross_heads = None
    if cross is not None:
        attention = make_attention(cross, config.dim // config.heads)
        _require_no_window(attention, "cross", "a window is relative to a position of the same sequence")
        cross_heads = MultiHead(config.dim, config.heads, attention, output_norm=_norm(config, attention))
    feed_forward = _feed_forward(config, activation)
    scheme, layer = positions.for_heads(), read_layer(kind)
    heads = _heads(config, scheme, make_attention(layer.kind, _key_dim(config)), layer)
    return DecoderBlock(heads, feed_forward, _residual(config), cross_heads)


def as_decoder_block(module: nn.Module) -> DecoderBlock:
    """Return a member of a ModuleList with its type."""
    assert isinstance(module, DecoderBlock)
    return module


def blocks_cost(blocks: nn.ModuleList, span: Span) -> Cost:
    """Return the cost of all blocks together, term by term."""
    total = Cost()
    for block in blocks:
        assert isinstance(block, EncoderBlock | DecoderBlock)
        total += block.cost(span)
    return total


def _key_dim(config: BlockSizes) -> int:
    return config.key_dim or config.dim // config.heads


def _require_no_window(attention: Attention, name: str, why: str) -> None:
    window = getattr(attention, "window", None)
    if window is not None:
        raise ValueError(f"{name} has window={window}, but {why}; leave it out")


def _require_no_causal_parts(layer: LayerSpec, attention: Attention) -> None:
    if attention.causal_only:
        raise ValueError(
            f"attention kind {attention.kind!r} reads a state of past keys, but an encoder is bidirectional; use "
            "another kind, such as taylor or softmax"
        )
    if layer.causal_parts:
        raise ValueError(
            f"attention {layer.kind}+{'+'.join(layer.parts)} has {' and '.join(layer.causal_parts)}, which changes a "
            "state of past keys, but an encoder is bidirectional; leave it out"
        )


def _require_bidirectional(attention: Attention, positions: Positions | None) -> None:
    """Raise for a scheme that this kind accepts only as a decay, which is causal: it fades the past."""
    accepts = attention.accepts - {"decay"}
    if positions is None or positions.serves(accepts):
        return
    if not positions.serves(attention.accepts):
        raise incompatible_error(positions, attention.kind, accepts)
    others = ", ".join(sorted(name for name in schemes if schemes[name].serves(accepts)))
    raise ValueError(
        f"positions {positions.kind!r} make attention kind {attention.kind!r} fade the past, but an encoder is "
        f"bidirectional; for {attention.kind!r} in an encoder use {others}"
    )


def _heads(config: BlockSizes, positions: Positions | None, attention: Attention, layer: LayerSpec) -> MultiHead:
    shape = Heads(config.heads, key_dim=config.key_dim)
    count, key_heads, key_dim, value_dim = shape.resolve(config.dim)
    channels = count * key_dim + key_heads * (key_dim + value_dim)
    sizes = {"dim": config.dim, "heads": count, "key_dim": key_dim, "value_dim": value_dim, "channels": channels}
    gates, convolution = layer.build(sizes)
    if convolution is not None and config.convolution:
        raise ValueError(
            f"convolution={config.convolution} is before the projections of attention {layer.kind!r}, and its part "
            "convolution after them; use one of them, such as convolution=0"
        )
    heads = MultiHead(
        config.dim,
        shape,
        attention,
        positions,
        convolution=ShortConvolution(config.dim, config.convolution) if config.convolution else convolution,
        output_norm=_norm(config, attention),
        gates=gates,
    )
    if isinstance(positions, Rope) and heads.key_dim % 2:
        raise ValueError(f"positions 'rope' rotate pairs of channels, so key_dim must be even, got {heads.key_dim}")
    return heads


def _norm(config: BlockSizes, attention: Attention) -> nn.Module | None:
    """Return a norm for the output of each head of a kind that sums instead of averaging, which needs one to learn."""
    return None if getattr(attention, "normalizes", True) else HeadNorm(config.dim // config.heads)


class HeadNorm(nn.RMSNorm):
    """`nn.RMSNorm` in the precision of its weight: with the narrower input of autocast, torch has no fast kernel.

    Its epsilon is that of float32 in every precision. The default of torch depends on the dtype.
    """

    def __init__(self, dim: int):
        super().__init__(dim, eps=torch.finfo(torch.float32).eps)

    def forward(self, x: Tensor) -> Tensor:
        """Return x / rms(x) * weight."""
        assert self.weight is not None
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)


def _feed_forward(config: BlockSizes, activation: nn.Module | None = None) -> nn.Module:
    if not config.hidden_dim:
        return _NoFeedForward()
    return FeedForward(config.dim, config.hidden_dim, activation, config.dropout)


def _residual(config: BlockSizes) -> partial[PreNorm]:
    return partial(PreNorm, config.dim, config.dropout)


class _NoFeedForward(nn.Module):
    """No feed-forward layer: adds zero to the residual path."""

    def forward(self, x: Hidden) -> Tensor:
        return x.new_zeros(())

    def cost(self, span: Span) -> Cost:
        return Cost()
