"""An encoder-decoder Transformer made ready to write fast: what does not depend on the words is computed before.

    q, k, v of the first blocks      tables over (place, token), for they depend on nothing else
    q, k, v of the other blocks      one product instead of three
    rotary places                    one complex product, the two numbers of a pair side by side
    scales and shifts of a norm      within the product that follows it; so is the scale of the scores
    the mean that a norm takes away  never there, for what is added to a stream that is normed has none

It writes what the model writes, up to rounding, and cannot be trained. Words of a few letters are decoded by many small
operations, so that calling them costs as much as doing them: there are as few here as can be.
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
from qkv.models.builders import Places
from qkv.models.encoder_decoder import EncoderDecoder
from qkv.models.masks import require_mask
from qkv.models.validation import require_length
from qkv.positions.rope import Rope, rotary_angles
from qkv.shapes import Mask, Rows

try:
    from qkv.models.fast.fused_numpy import Alone, AloneState
except ImportError:  # numpy is not a dependency
    Alone = None  # type: ignore[assignment, misc]

LARGEST_TABLE = 2**24
"""Numbers that a table over places and tokens may have; 64 MB."""
FEW = 2**14
"""Numbers for which the start of a kernel costs more than its work."""


@dataclass(frozen=True)
class FoldedState:
    """What is remembered while writing; rows x time x (keys, values) x heads x dim, per block.

    A step writes into it, so it can be continued once; `select` copies.
    """

    written: tuple[Tensor, ...]
    """Of the tokens so far, with room for more."""
    read: tuple[Tensor, ...]
    """Of the source, as attention takes them: (keys, values) first, then rows x heads x time x dim."""
    mask: Tensor | None
    length: int

    def select(self, rows: Rows) -> "FoldedState":
        """The state of these sequences."""
        mask = None if self.mask is None else self.mask[rows]
        written = tuple(held.index_select(0, rows) for held in self.written)
        return FoldedState(written, tuple(held.index_select(1, rows) for held in self.read), mask, self.length)


def can_fold(model: nn.Module) -> TypeGuard[EncoderDecoder]:
    """Whether a model is of the kind that can: softmax attention, places that are added or turned, small tables.

    One that is in training cannot, for it drops numbers at random.
    """
    if not isinstance(model, EncoderDecoder) or model.training:
        return False
    config = model.config
    tokens = max(model.read.num_embeddings, model.write.num_embeddings)
    return (
        config.encoder_layers > 0
        and config.hidden_dim > 0
        and model.predict.weight.dtype in (torch.float32, torch.float64)
        and all(_is_plain(heads) for heads in model.modules() if isinstance(heads, MultiHead))
        and 4 * config.max_length * tokens * config.dim <= LARGEST_TABLE
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
        and heads.output_norm is None
        and heads.key_heads == heads.heads
        and heads.key_dim == heads.value_dim
        and (heads.positions is None or heads.key_dim % 2 == 0)
    )


class Folded(nn.Module):
    """`start` and `step` of a model that `can_fold`."""

    letters: Tensor

    def __init__(self, model: EncoderDecoder):
        super().__init__()
        if not can_fold(model):
            raise ValueError(
                "model must be an EncoderDecoder in eval mode, of softmax attention without convolution, with rotary "
                "places or such as are added, and with few tokens; any other decodes as it is"
            )
        self.config = model.config
        with torch.no_grad():
            self.encoder_norm = _Norm(model.encoder_norm)
            self.decoder_norm = _Norm(model.decoder_norm)
            self.encoder = [_Reader(block, self.config.max_length) for block in model.encoder]
            self.decoder = [_Writer(block, self.encoder_norm, self.config.max_length) for block in model.decoder]
            letters = _table(model, model.read, model.read_places, self.encoder[0])
            tokens = _table(model, model.write, model.write_places, self.decoder[0])
            self.predict = _Linear([model.predict], self.decoder_norm)
        self.register_buffer("letters", letters, persistent=False)
        self.by_place = tokens.unbind(0)
        self.alone = Alone(self) if letters.device.type == "cpu" and Alone is not None else None

    def start(self, inputs: Tensor, mask: Mask | None) -> "FoldedState | AloneState":
        """The state before the first token."""
        rows, time = inputs.shape
        require_length(time, self.config.max_length)
        require_mask(mask, inputs)
        hidden = None if mask is None or bool(mask.all()) else mask[:, None, None, :]
        if rows == 1 and hidden is None and self.alone is not None:
            return self.alone.start(inputs)
        places = torch.arange(time, device=inputs.device) * self.letters.shape[1]
        found = self.letters.flatten(0, 1).index_select(0, (inputs + places).view(-1))
        x, projected = found.split_with_sizes((self.config.dim, 3 * self.config.dim), -1)  # rows * time first
        for number, block in enumerate(self.encoder):
            now = projected if number == 0 else block.project(x, slice(0, time))
            x = block.read(x, now.view(rows, time, 3, *block.split), hidden)
        x = self.encoder_norm(x)
        room = min(time + 4, self.config.max_length)  # phones are seldom more than letters
        written = tuple(x.new_empty(rows, room, 2, *block.split) for block in self.decoder)
        read = tuple(block.memory(x).view(rows, time, 2, *block.split).permute(2, 0, 3, 1, 4) for block in self.decoder)
        return FoldedState(written, read, hidden, 0)

    def step(
        self, tokens: Rows, state: "FoldedState | AloneState"
    ) -> "tuple[Tensor, FoldedState] | tuple[Tensor, AloneState]":
        """Logits (rows, targets) after one more token each."""
        if not isinstance(state, FoldedState):
            assert self.alone is not None
            return self.alone.step(tokens, state)
        place, written = state.length, state.written
        require_length(place + 1, self.config.max_length)
        if place == written[0].shape[1]:
            written = tuple(_longer(held, min(2 * place, self.config.max_length)) for held in written)
        found = self.by_place[place].index_select(0, tokens)
        x, projected = found.split_with_sizes((self.config.dim, 3 * self.config.dim), -1)
        for number, block in enumerate(self.decoder):
            now = projected if number == 0 else block.project(x, slice(place, place + 1))
            seen = written[number].narrow(1, 0, place + 1)
            x = block.write(x, now.view(-1, 3, *block.split), seen, state.read[number], state.mask)
        return self.predict(self.decoder_norm(x)), FoldedState(written, state.read, state.mask, place + 1)


class _Reader:
    """An encoder block."""

    def __init__(self, block: nn.Module, longest: int):
        assert isinstance(block, EncoderBlock)
        self.norm = _Norm(block.around_attention)
        self.heads = _Heads(block.attention, self.norm, longest)
        self.think = _Think(block.feed_forward, block.around_feed_forward)
        self.split = self.heads.split

    def project(self, x: Tensor, places: slice) -> Tensor:
        """q, k and v side by side."""
        return self.heads.project(self.norm(x), places)

    def read(self, x: Tensor, projected: Tensor, mask: Tensor | None) -> Tensor:
        """(rows * time, dim), given (rows, time, (q, k, v), heads, dim)."""
        q, k, v = projected.permute(2, 0, 3, 1, 4)  # (q, k, v) rows heads time dim
        out = _attend(q, k, v, mask).transpose(1, 2).reshape(x.shape)
        return self.think(x + self.heads.output(out))


class _Writer:
    """A decoder block, one token at a time."""

    def __init__(self, block: nn.Module, source_norm: "_Norm", longest: int):
        assert isinstance(block, DecoderBlock)
        assert block.cross is not None
        assert block.around_cross is not None
        self.norm = _Norm(block.around_attention)
        self.heads = _Heads(block.attention, self.norm, longest)
        self.cross_norm = _Norm(block.around_cross)
        self.query = _Linear([block.cross.query], self.cross_norm)
        self.query.scale(self.heads.split[1] ** -0.5, block.cross.query.out_features)
        self.memory = _Linear([block.cross.key, block.cross.value], source_norm)
        self.cross_output = _Linear([block.cross.output], centered=True)
        self.think = _Think(block.feed_forward, block.around_feed_forward)
        self.split = self.heads.split

    def project(self, x: Tensor, places: slice) -> Tensor:
        """q, k and v side by side."""
        return self.heads.project(self.norm(x), places)

    def write(self, x: Tensor, projected: Tensor, written: Tensor, read: Tensor, mask: Tensor | None) -> Tensor:
        """(rows, dim), given (rows, (q, k, v), heads, dim); the keys and values become the last of `written`."""
        written.select(1, -1).copy_(projected.narrow(1, 1, 2))
        k, v = written.permute(2, 0, 3, 1, 4)  # (k, v) rows heads time dim
        out = _attend(projected.select(1, 0).unsqueeze(2), k, v, None)
        x = x + self.heads.output(out.view(x.shape))
        q = self.query(self.cross_norm(x)).view(-1, self.split[0], 1, self.split[1])
        k, v = read
        return self.think(x + self.cross_output(_attend(q, k, v, mask).view(x.shape)))


class _Heads:
    """The projections around an attention; rotary places are turned within them."""

    def __init__(self, heads: MultiHead, norm: "_Norm", longest: int):
        self.split = (heads.heads, heads.key_dim)
        self.input = _Linear([heads.query, heads.key, heads.value], norm)
        self.input.scale(heads.key_dim**-0.5, heads.query.out_features)
        self.output = _Linear([heads.output], centered=True)
        self.turn: Tensor | None = None
        if isinstance(heads.positions, Rope):
            self.input.reorder(_side_by_side(heads))
            weight = heads.query.weight
            angle = rotary_angles(torch.arange(longest, device=weight.device), heads.key_dim, heads.positions.base)
            turn = torch.complex(angle.cos().to(weight.dtype), angle.sin().to(weight.dtype))
            self.turn = turn[:, None, None]  # places (q, k) heads pairs

    def project(self, x: Tensor, places: slice) -> Tensor:
        """(rows * time, q k v) of tokens that stand at these places, turned."""
        projected = self.input(x)
        if self.turn is not None:
            turn = self.turn[places]
            pairs = projected.view(-1, turn.shape[0], 3, self.split[0], self.split[1] // 2, 2).narrow(2, 0, 2)
            torch.view_as_complex(pairs).mul_(turn)
        return projected


class _Think:
    """x + feed_forward(norm(x))"""

    def __init__(self, layer: nn.Module, around: nn.Module):
        assert isinstance(layer, FeedForward)
        self.norm = _Norm(around)
        self.enter, self.leave = _Linear([layer.enter], self.norm), _Linear([layer.leave], centered=True)
        self.is_gelu = type(layer.activation) is nn.GELU and layer.activation.approximate == "none"
        self.activation = _gelu if self.is_gelu else layer.activation

    def __call__(self, x: Tensor) -> Tensor:
        return x + self.leave(self.activation(self.enter(self.norm(x))))


class _Norm:
    """A LayerNorm, or that of a path normed before; its scale and shift are left to what follows."""

    def __init__(self, module: nn.Module):
        norm = module.norm if isinstance(module, PreNorm) else module
        assert isinstance(norm, nn.LayerNorm)
        self.shape, self.epsilon = norm.normalized_shape, norm.eps
        self.weight, self.bias = norm.weight.detach(), norm.bias.detach()

    def __call__(self, x: Tensor) -> Tensor:
        return torch.layer_norm(x, self.shape, None, None, self.epsilon)


class _Linear:
    """Several linear maps of one input, their outputs side by side.

    Their weights lie in the order in which a product of few rows reads them.
    """

    def __init__(self, layers: Sequence[nn.Linear], norm: _Norm | None = None, *, centered: bool = False):
        """With the scale and the shift of the norm before; or `centered`, so that outputs have mean 0."""
        weight, bias = torch.cat([layer.weight for layer in layers]).T, torch.cat([layer.bias for layer in layers])
        if norm is not None:
            weight, bias = norm.weight[:, None] * weight, norm.bias @ weight + bias
        if centered:
            weight, bias = weight - weight.mean(1, keepdim=True), bias - bias.mean()
        self.weight, self.bias = weight.contiguous(), bias

    def __call__(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x, self.weight)

    def scale(self, factor: float, outputs: int) -> None:
        """The first so many outputs times a factor."""
        self.weight[:, :outputs] *= factor
        self.bias[:outputs] *= factor

    def reorder(self, order: Tensor) -> None:
        """Output `order[i]` becomes output i."""
        self.weight, self.bias = self.weight[:, order].contiguous(), self.bias[order].contiguous()


def _gelu(x: Tensor) -> Tensor:
    """GELU; of few numbers as a transposed view, for torch hands what is contiguous to oneDNN, which starts slowly."""
    if x.numel() > FEW or x.numel() % 2:
        return functional.gelu(x)
    return functional.gelu(x.view(2, -1).t()).t().view(x.shape)


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v, mask, scale=1.0)


def _side_by_side(heads: MultiHead) -> Tensor:
    """Rope turns number i of a head with number i + dim/2; in this order of q and k they are neighbors.

    A dot product does not mind the order. Values keep theirs.
    """
    width, dim = heads.heads * heads.key_dim, heads.key_dim
    within = torch.arange(dim).view(2, -1).T.flatten()
    turned = (torch.arange(0, 2 * width, dim)[:, None] + within).flatten()
    return torch.cat((turned, torch.arange(2 * width, 3 * width))).to(heads.query.weight.device)


def _table(model: EncoderDecoder, embedding: nn.Embedding, places: Places, block: "_Reader | _Writer") -> Tensor:
    """(places, tokens, x q k v): the vector of each token at each place, and what the first block makes of it."""
    longest, tokens = model.config.max_length, embedding.num_embeddings
    ids = torch.arange(tokens, device=embedding.weight.device)[:, None].expand(-1, longest)
    x = embedding(ids) * model.config.dim**0.5
    if places.added is not None:
        x = places.added(x, torch.arange(longest, device=ids.device))
    x = (x - x.mean(-1, keepdim=True)).flatten(0, 1)
    found = torch.cat((x, block.project(x, slice(0, longest))), -1)
    return found.view(tokens, longest, -1).transpose(0, 1).contiguous()


def _longer(held: Tensor, room: int) -> Tensor:
    """The same with room for more tokens."""
    longer = held.new_empty(held.shape[0], room, *held.shape[2:])
    longer[:, : held.shape[1]] = held
    return longer
