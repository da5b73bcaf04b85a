"""Fused inference of an encoder-decoder Transformer: everything that does not depend on the input is precomputed.

    q, k, v of the first blocks      tables over (position, token), since they depend on nothing else
    q, k, v of the other blocks      one matrix product instead of three
    rotary positions                 one complex product, with the two channels of a pair adjacent
    scale and shift of a norm        folded into the linear layer after it; so is the scale of the scores
    the mean that a norm subtracts   always 0, since everything added to a normed stream is centered

The output equals that of the model up to rounding. A fused model cannot be trained. Decoding a word of a few letters is
many small operations, whose launch costs as much as their work: this module has as few of them as possible.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional

from qkv.attention import Softmax
from qkv.layers import FeedForward, MultiHead, PreNorm
from qkv.layers.blocks import DecoderBlock, EncoderBlock
from qkv.models.builders import PositionEmbedding
from qkv.models.encoder_decoder import EncoderDecoder
from qkv.models.fast.fused_numpy import NumpyDecoder, NumpyState
from qkv.models.validation import require_length, require_mask
from qkv.positions.rope import Rope, rotary_angles
from qkv.shapes import Mask, Rows

MAX_TABLE_NUMEL = 2**24
"""Largest table over positions and tokens: 64 MB in float32."""
SMALL_NUMEL = 2**14
"""Size of a tensor below which launching a kernel costs more than its work."""


@dataclass(frozen=True)
class FusedState:
    """The decoding state. A step writes into it, so it can be continued only once; `select` copies."""

    kv_cache: tuple[Tensor, ...]
    """Keys and values of the tokens so far, with spare capacity: (rows, time, (k, v), heads, dim) per block."""
    source_kv: tuple[Tensor, ...]
    """Keys and values of the source: ((k, v), rows, heads, time, dim) per block."""
    mask: Tensor | None
    length: int

    def select(self, rows: Rows) -> "FusedState":
        """Return the state of these rows."""
        mask = None if self.mask is None else self.mask[rows]
        kv_cache = tuple(cache.index_select(0, rows) for cache in self.kv_cache)
        source_kv = tuple(keys_values.index_select(1, rows) for keys_values in self.source_kv)
        return FusedState(kv_cache, source_kv, mask, self.length)


def can_fuse(model: nn.Module) -> TypeGuard[EncoderDecoder]:
    """Return whether a model can be fused: softmax attention, added or rotary positions, small tables, eval mode."""
    if not isinstance(model, EncoderDecoder) or model.training:
        return False
    config = model.config
    tokens = max(model.source_embedding.num_embeddings, model.target_embedding.num_embeddings)
    return (
        config.encoder_layers > 0
        and config.hidden_dim > 0
        and model.lm_head.weight.dtype in (torch.float32, torch.float64)
        and all(_is_plain(heads) for heads in model.modules() if isinstance(heads, MultiHead))
        and 4 * config.max_length * tokens * config.dim <= MAX_TABLE_NUMEL
    )


def _is_plain(heads: MultiHead) -> bool:
    attention = heads.attention
    return (
        type(attention) is Softmax
        and attention.scale is None
        and attention.window is None
        and heads.position_role in (None, "rotation")
        and isinstance(heads.positions, Rope | None)
        and heads.convolution is None
        and heads.projection_convolution is None
        and heads.gates is None
        and heads.output_norm is None
        and heads.key_heads == heads.heads
        and heads.key_dim == heads.value_dim
        and (heads.positions is None or heads.key_dim % 2 == 0)
    )


class FusedEncoderDecoder(nn.Module):
    """Faster `start` and `step` of an encoder-decoder for which `can_fuse` is true."""

    source_table: Tensor
    """(positions, tokens, x q k v) of the first encoder block."""

    def __init__(self, model: EncoderDecoder):
        super().__init__()
        if not can_fuse(model):
            raise ValueError(
                "model must be an EncoderDecoder in eval mode, of softmax attention without convolution or gates, with "
                "rotary or added positions, and with a small vocabulary; use any other model as it is"
            )
        self.config = model.config
        max_length = model.config.max_length
        with torch.no_grad():
            self.encoder_norm = _Norm(model.encoder_norm)
            self.decoder_norm = _Norm(model.decoder_norm)
            self.encoder = [_FusedEncoderBlock(block, max_length) for block in model.encoder]
            self.decoder = [_FusedDecoderBlock(block, self.encoder_norm, max_length) for block in model.decoder]
            source_table = _table(model, model.source_embedding, model.source_positions, self.encoder[0])
            target_table = _table(model, model.target_embedding, model.target_positions, self.decoder[0])
            self.lm_head = _Linear([model.lm_head], self.decoder_norm)
        self.register_buffer("source_table", source_table, persistent=False)
        self.target_tables = target_table.unbind(0)  # one per position
        on_cpu = source_table.device.type == "cpu"
        self.numpy_decoder = NumpyDecoder(self) if on_cpu else None

    def start(self, inputs: Tensor, mask: Mask | None) -> "FusedState | NumpyState":
        """Encode the source and return the state before the first token; one row on a CPU runs in numpy."""
        rows, time = inputs.shape
        require_length(time, self.config.max_length)
        require_mask(mask, inputs)
        key_mask = None if mask is None or bool(mask.all()) else mask[:, None, None, :]
        if rows == 1 and key_mask is None and self.numpy_decoder is not None:
            return self.numpy_decoder.start(inputs)
        offsets = torch.arange(time, device=inputs.device) * self.source_table.shape[1]
        entries = self.source_table.flatten(0, 1).index_select(0, (inputs + offsets).view(-1))  # [rows * time, x q k v]
        x, qkv = entries.split_with_sizes((self.config.dim, 3 * self.config.dim), -1)
        for number, block in enumerate(self.encoder):
            qkv = qkv if number == 0 else block.project(x, slice(0, time))
            x = block.forward(x, qkv.view(rows, time, 3, *block.split), key_mask)
        x = self.encoder_norm(x)
        capacity = min(time + 4, self.config.max_length)  # a word seldom has more phones than letters
        kv_cache = tuple(x.new_empty(rows, capacity, 2, *block.split) for block in self.decoder)
        source_kv = tuple(
            block.key_value(x).view(rows, time, 2, *block.split).permute(2, 0, 3, 1, 4) for block in self.decoder
        )
        return FusedState(kv_cache, source_kv, key_mask, 0)

    def step(
        self, tokens: Rows, state: "FusedState | NumpyState"
    ) -> "tuple[Tensor, FusedState] | tuple[Tensor, NumpyState]":
        """Return logits (rows, targets) after one more token per row, and the new state."""
        if not isinstance(state, FusedState):
            assert self.numpy_decoder is not None
            return self.numpy_decoder.step(tokens, state)
        position, kv_cache = state.length, state.kv_cache
        require_length(position + 1, self.config.max_length)
        if position == kv_cache[0].shape[1]:
            kv_cache = tuple(_grow(cache, min(2 * position, self.config.max_length)) for cache in kv_cache)
        entries = self.target_tables[position].index_select(0, tokens)  # [rows, x q k v]
        x, qkv = entries.split_with_sizes((self.config.dim, 3 * self.config.dim), -1)
        for number, block in enumerate(self.decoder):
            qkv = qkv if number == 0 else block.project(x, slice(position, position + 1))
            past = kv_cache[number].narrow(1, 0, position + 1)
            x = block.step(x, qkv.view(-1, 3, *block.split), past, state.source_kv[number], state.mask)
        return self.lm_head(self.decoder_norm(x)), FusedState(kv_cache, state.source_kv, state.mask, position + 1)


class _FusedEncoderBlock:
    """An encoder block."""

    def __init__(self, block: nn.Module, max_length: int):
        assert isinstance(block, EncoderBlock)
        self.norm = _Norm(block.around_attention)
        self.heads = _FusedHeads(block.attention, self.norm, max_length)
        self.feed_forward = _FusedFeedForward(block.feed_forward, block.around_feed_forward)
        self.split = self.heads.split

    def project(self, x: Tensor, positions: slice) -> Tensor:
        """Return q, k and v, concatenated."""
        return self.heads.project(self.norm(x), positions)

    def forward(self, x: Tensor, qkv: Tensor, mask: Tensor | None) -> Tensor:
        """Return (rows * time, dim), given (rows, time, (q, k, v), heads, dim)."""
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each [rows, heads, time, dim]
        out = _attend(q, k, v, mask).transpose(1, 2).reshape(x.shape)
        return self.feed_forward(x + self.heads.output(out))


class _FusedDecoderBlock:
    """A decoder block, one token at a time."""

    def __init__(self, block: nn.Module, source_norm: "_Norm", max_length: int):
        assert isinstance(block, DecoderBlock)
        assert block.cross is not None
        assert block.around_cross is not None
        self.norm = _Norm(block.around_attention)
        self.heads = _FusedHeads(block.attention, self.norm, max_length)
        self.cross_norm = _Norm(block.around_cross)
        self.query = _Linear([block.cross.query], self.cross_norm)
        self.query.scale(self.heads.split[1] ** -0.5, block.cross.query.out_features)
        self.key_value = _Linear([block.cross.key, block.cross.value], source_norm)
        self.cross_output = _Linear([block.cross.output], centered=True)
        self.feed_forward = _FusedFeedForward(block.feed_forward, block.around_feed_forward)
        self.split = self.heads.split

    def project(self, x: Tensor, positions: slice) -> Tensor:
        """Return q, k and v, concatenated."""
        return self.heads.project(self.norm(x), positions)

    def step(self, x: Tensor, qkv: Tensor, past: Tensor, source_kv: Tensor, mask: Tensor | None) -> Tensor:
        """Return (rows, dim), given (rows, (q, k, v), heads, dim); k and v become the last position of `past`."""
        past.select(1, -1).copy_(qkv.narrow(1, 1, 2))
        k, v = past.permute(2, 0, 3, 1, 4)  # each [rows, heads, time, dim]
        out = _attend(qkv.select(1, 0).unsqueeze(2), k, v, None)
        x = x + self.heads.output(out.view(x.shape))
        q = self.query(self.cross_norm(x)).view(-1, self.split[0], 1, self.split[1])
        k, v = source_kv
        return self.feed_forward(x + self.cross_output(_attend(q, k, v, mask).view(x.shape)))


class _FusedHeads:
    """The projections around an attention, with rotary positions applied."""

    def __init__(self, heads: MultiHead, norm: "_Norm", max_length: int):
        self.split = (heads.heads, heads.key_dim)
        self.input = _Linear([heads.query, heads.key, heads.value], norm)
        self.input.scale(heads.key_dim**-0.5, heads.query.out_features)
        self.output = _Linear([heads.output], centered=True)
        self.rotation: Tensor | None = None
        if isinstance(heads.positions, Rope):
            self.input.reorder(_adjacent_pairs(heads))
            weight = heads.query.weight
            positions = torch.arange(max_length, device=weight.device)
            angle = rotary_angles(positions, heads.key_dim, heads.positions.base)
            rotation = torch.complex(angle.cos().to(weight.dtype), angle.sin().to(weight.dtype))
            self.rotation = rotation[:, None, None]  # [positions, (q, k), heads, pairs]

    def project(self, x: Tensor, positions: slice) -> Tensor:
        """Return q, k and v of tokens at these positions, rotated: (rows * time, q k v)."""
        qkv = self.input(x)
        if self.rotation is not None:
            rotation = self.rotation[positions]
            pairs = qkv.view(-1, rotation.shape[0], 3, self.split[0], self.split[1] // 2, 2).narrow(2, 0, 2)
            torch.view_as_complex(pairs).mul_(rotation)
        return qkv


class _FusedFeedForward:
    """x + feed_forward(norm(x))"""

    def __init__(self, layer: nn.Module, residual: nn.Module):
        assert isinstance(layer, FeedForward)
        self.norm = _Norm(residual)
        self.up, self.down = _Linear([layer.up], self.norm), _Linear([layer.down], centered=True)
        self.is_gelu = type(layer.activation) is nn.GELU and layer.activation.approximate == "none"
        self.activation = _gelu if self.is_gelu else layer.activation

    def __call__(self, x: Tensor) -> Tensor:
        return x + self.down(self.activation(self.up(self.norm(x))))


class _Norm:
    """A LayerNorm, or that of a pre-norm residual; its scale and shift are folded into the next linear layer."""

    def __init__(self, module: nn.Module):
        norm = module.norm if isinstance(module, PreNorm) else module
        assert isinstance(norm, nn.LayerNorm)
        self.shape, self.epsilon = norm.normalized_shape, norm.eps
        self.weight, self.bias = norm.weight.detach(), norm.bias.detach()

    def __call__(self, x: Tensor) -> Tensor:
        return torch.layer_norm(x, self.shape, None, None, self.epsilon)


class _Linear:
    """Several linear layers with one input, their outputs concatenated.

    The weights are stored in the order in which a product of few rows reads them.
    """

    def __init__(self, layers: Sequence[nn.Linear], norm: _Norm | None = None, *, centered: bool = False):
        """Fold in the scale and shift of the norm before; or subtract the mean of the outputs if `centered`."""
        weight, bias = torch.cat([layer.weight for layer in layers]).T, torch.cat([layer.bias for layer in layers])
        if norm is not None:
            weight, bias = norm.weight[:, None] * weight, norm.bias @ weight + bias
        if centered:
            weight, bias = weight - weight.mean(1, keepdim=True), bias - bias.mean()
        self.weight, self.bias = weight.contiguous(), bias

    def __call__(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x, self.weight)

    def scale(self, factor: float, outputs: int) -> None:
        """Multiply the first `outputs` outputs by a factor."""
        self.weight[:, :outputs] *= factor
        self.bias[:outputs] *= factor

    def reorder(self, order: Tensor) -> None:
        """Move output `order[i]` to index i."""
        self.weight, self.bias = self.weight[:, order].contiguous(), self.bias[order].contiguous()


def _gelu(x: Tensor) -> Tensor:
    """Return GELU; a small x goes in transposed: torch sends contiguous tensors to oneDNN, which starts slowly."""
    if x.numel() > SMALL_NUMEL or x.numel() % 2:
        return functional.gelu(x)
    return functional.gelu(x.view(2, -1).t()).t().view(x.shape)


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v, mask, scale=1.0)


def _adjacent_pairs(heads: MultiHead) -> Tensor:
    """Return the order of q, k, v in which the pairs of RoPE, channels i and i + dim/2 of a head, are adjacent.

    A dot product does not depend on the order. Values keep theirs.
    """
    width, dim = heads.heads * heads.key_dim, heads.key_dim
    within_head = torch.arange(dim).view(2, -1).T.flatten()
    queries_keys = (torch.arange(0, 2 * width, dim)[:, None] + within_head).flatten()
    return torch.cat((queries_keys, torch.arange(2 * width, 3 * width))).to(heads.query.weight.device)


def _table(
    model: EncoderDecoder,
    embedding: nn.Embedding,
    positions: PositionEmbedding,
    block: "_FusedEncoderBlock | _FusedDecoderBlock",
) -> Tensor:
    """Return (positions, tokens, x q k v): the input of each token at each position, and its q, k, v in this block."""
    max_length, tokens = model.config.max_length, embedding.num_embeddings
    ids = torch.arange(tokens, device=embedding.weight.device)[:, None].expand(-1, max_length)
    x = embedding(ids) * model.config.dim**0.5
    if positions.added is not None:
        x = positions.added(x, torch.arange(max_length, device=ids.device))
    x = (x - x.mean(-1, keepdim=True)).flatten(0, 1)
    entries = torch.cat((x, block.project(x, slice(0, max_length))), -1)
    return entries.view(tokens, max_length, -1).transpose(0, 1).contiguous()


def _grow(cache: Tensor, capacity: int) -> Tensor:
    """Return a copy with room for more tokens."""
    larger = cache.new_empty(cache.shape[0], capacity, *cache.shape[2:])
    larger[:, : cache.shape[1]] = cache
    return larger
