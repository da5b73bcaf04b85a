"""Fast inference of a `Decoder` on a CPU: the same model with packed weights and few calls per block.

    every linear layer       packed weights (`products`)
    plain blocks             one product for q, k and v; activations and residual sums inside the products;
                             positions from a table; a step of one token without dispatch (`one_token`)

The result is a `Decoder` that shares its weights and its states with the original: whatever decodes, saves, joins or
verifies states works with both, and a state of one can be continued by the other.
"""

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn

from qkv.layers import DecoderBlock, FeedForward, HeadsState, MultiHead, PreNorm
from qkv.layers.heads import Context
from qkv.layers.undo_log import UndoLog
from qkv.models.builders import as_decoder_block
from qkv.models.decoder import Decoder
from qkv.models.fast.one_token import token_step
from qkv.models.fast.packed_linear import PackedLinear, is_fast
from qkv.models.fast.products import Int8Product, MakeProduct, float_product, int8_works
from qkv.positions.rope import Rope, rotary_angles
from qkv.shapes import Hidden, Mask, Rows


def fast_form(model: nn.Module) -> nn.Module:
    """Return the fused form of a model; the model itself if it has none."""
    return model if unfusable_reason(model) else fuse(model)


def fuse(model: nn.Module) -> Decoder:
    """Return the fused form of a decoder; raise ValueError with the reason if it has none."""
    decoder = _require_fusable(model, "fused form")
    return _fuse(decoder, float_product(_weights(decoder).dtype))


def quantize(model: nn.Module) -> Decoder:
    """Return the fused form with weights of 8 bits, a scale for each output; raise ValueError if it has none.

    Only products are quantized: embeddings, norms, attention and states stay in float32.
    """
    decoder = _require_fusable(model, "int8 form")
    if _weights(decoder).dtype != torch.float32:
        raise ValueError(f"int8 weights are made from float32, got {_weights(decoder).dtype}")
    if not int8_works():
        raise ValueError("int8 weights need a CPU whose products of 8-bit integers do not saturate; use float32")
    return _fuse(decoder, Int8Product)


def unfusable_reason(model: nn.Module) -> str | None:
    """Return why a model has no fused form; None if it has one."""
    if type(model) is not Decoder:
        return f"only a Decoder has one, not {type(model).__name__}"
    if model.training:
        return "the model is in training mode; call eval() first"
    weight = _weights(model)
    if weight.device.type != "cpu":
        return f"the model is on {weight.device}, and this form is for the CPU"
    if weight.dtype not in (torch.float32, torch.float64):
        return f"its weights are {weight.dtype}, and float32 or float64 is expected"
    if any(isinstance(module, PackedLinear) for module in model.modules()):
        return "it is a fused form already"
    return None


class FusedDecoderBlock(DecoderBlock):
    """A decoder block of plain parts, whose `step` makes few calls; with gradients it is the plain block."""

    def __init__(self, block: DecoderBlock, make_product: MakeProduct, max_length: int):
        nn.Module.__init__(self)
        self.attention, self.cross, self.feed_forward = block.attention, None, block.feed_forward
        self.around_attention, self.around_cross = block.around_attention, None
        self.around_feed_forward = block.around_feed_forward
        self.fused = _BlockStep(block, make_product, max_length)

    def step(
        self, x: Hidden, state: HeadsState, mask: Mask | None = None, context: Context | None = None
    ) -> tuple[Hidden, HeadsState]:
        """Process the next token or tokens (decode or prefill)."""
        fused = self.fused
        if x.dtype != fused.dtype or not is_fast(x):
            return super().step(x, state, mask, context)
        return fused(x, state, mask)

    def _get_name(self) -> str:
        """Return the name of the plain block: the fingerprint of a model, in files of states, reads it."""
        return "DecoderBlock"


class _BlockStep:
    """The step of a plain block. It is no module: looking up the parts of modules takes a tenth of a small step."""

    def __init__(self, block: DecoderBlock, make_product: MakeProduct, max_length: int):
        heads = block.attention
        parts = [heads.query, heads.key, heads.value]
        biases = [part.bias.detach() for part in parts if part.bias is not None]
        weight = torch.cat([part.weight.detach() for part in parts])
        self.dtype = weight.dtype
        self.shapes = [
            (heads.heads, heads.key_dim),
            (heads.key_heads, heads.key_dim),
            (heads.key_heads, heads.value_dim),
        ]
        self.attention, self.output_norm = heads.attention, heads.output_norm
        self.attend_token = token_step(heads.attention, heads.key_dim, heads.value_dim)
        self.rotation = _Rotation(heads, heads.positions, max_length) if isinstance(heads.positions, Rope) else None
        self.norm = _BlockNorm(block.around_attention)
        self.project = make_product(weight, torch.cat(biases) if biases else None, None)
        self.output = _packed(heads.output)
        self.feed_forward = None
        if isinstance(block.feed_forward, FeedForward):
            self.feed_forward = _FeedForwardStep(block.feed_forward, block.around_feed_forward, make_product)

    def __call__(self, x: Hidden, state: HeadsState, mask: Mask | None) -> tuple[Hidden, HeadsState]:
        flat = x.reshape(-1, x.shape[2])
        projected = self.project(self.norm(flat)).view(x.shape[0], x.shape[1], -1)
        out, after = self._attend(projected, state, mask)
        if self.output_norm is not None:
            out = self.output_norm(out)
        flat = self.output.product.add_to(flat, out.transpose(1, 2).reshape(flat.shape[0], -1))
        if self.feed_forward is not None:
            flat = self.feed_forward(flat)
        return flat.view(x.shape), after

    def _attend(self, projected: Tensor, state: HeadsState, mask: Mask | None) -> tuple[Tensor, HeadsState]:
        """Return the outputs (rows, heads, time, value_dim) and the new state."""
        past = state.attention
        rows, time, _ = projected.shape
        if self.rotation is not None:
            self.rotation.apply(projected, past.length, state.offsets)
        pieces = projected.split_with_sizes([count * dim for count, dim in self.shapes], -1)
        q, k, v = (x.view(rows, time, *shape).transpose(1, 2) for x, shape in zip(pieces, self.shapes, strict=True))
        before = past.preserved() if state.logs and mask is None else None
        if time == 1 and mask is None:
            out, new = self.attend_token(q, k, v, past)
        else:
            out, new = self.attention.step(q, k, v, past, mask=mask)
        after = HeadsState(new, None, state.offsets, state.logs)
        if before is not None and after.needs_log:
            after = replace(after, log=UndoLog(self.attention, before, q, k, v, {}, None))
        return out, after


class _FeedForwardStep:
    """x + feed_forward(norm(x))"""

    def __init__(self, layer: FeedForward, residual: nn.Module, make_product: MakeProduct):
        self.norm = _BlockNorm(residual)
        self.up = make_product(layer.up.weight, layer.up.bias, layer.activation)
        self.down = _packed(layer.down)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down.product.add_to(x, self.up(self.norm(x)))


class _BlockNorm:
    """The LayerNorm of a pre-norm residual."""

    def __init__(self, residual: nn.Module):
        assert isinstance(residual, PreNorm)
        norm = residual.norm
        self.arguments = norm.normalized_shape, norm.weight.detach(), norm.bias.detach(), norm.eps

    def __call__(self, x: Tensor) -> Tensor:
        return torch.layer_norm(x, *self.arguments)


class _Rotation:
    """Rotary positions of queries and keys, from a table of all positions."""

    def __init__(self, heads: MultiHead, positions: Rope, max_length: int):
        weight = heads.query.weight
        angle = rotary_angles(torch.arange(max_length), heads.key_dim, positions.base)
        cosine, sine = angle.cos().to(weight.dtype), angle.sin().to(weight.dtype)
        pairs = torch.stack((cosine, cosine), 1), torch.stack((-sine, sine), 1)
        self.table = torch.stack(pairs, 1)[:, :, None]  # [positions, cosine and sine, 1, halves, pairs]
        self.count = heads.heads + heads.key_heads
        self.width = self.count * heads.key_dim

    def apply(self, projected: Tensor, start: int, offsets: Rows | None) -> None:
        """Rotate the queries and keys of (rows, time, q k v), in place; rows may begin at different places."""
        rows, time, _ = projected.shape
        if offsets is None:
            found = self.table[start : start + time]
        elif time == 1:
            found = self.table[start - offsets][:, None]
        else:
            found = self.table[torch.arange(start, start + time) - offsets[:, None]]
        cosine, sine = found.unbind(-4)
        both = projected.narrow(2, 0, self.width)
        halves = both.view(rows, time, self.count, 2, -1)
        turned = torch.addcmul(halves * cosine, halves.flip(3), sine)
        both.copy_(turned.view(rows, time, -1))


def _fuse(model: Decoder, make_product: MakeProduct) -> Decoder:
    """Return a copy of the model that shares its tensors, with packed products and fused blocks."""
    memo: dict[int, object] = {id(x): x for x in (*model.parameters(), *model.buffers())}
    with torch.no_grad():
        for parent in model.modules():
            if isinstance(parent, MultiHead | FeedForward | Decoder):
                linear = (layer for layer in parent.children() if type(layer) is nn.Linear)
                memo |= {id(layer): PackedLinear(layer, make_product) for layer in linear}
        fused = copy.deepcopy(model, memo)
        for number, block in enumerate(fused.blocks):
            plain = as_decoder_block(block)
            if _is_plain(plain):
                fused.blocks[number] = FusedDecoderBlock(plain, make_product, model.config.max_length)
    return fused.eval()


def _is_plain(block: DecoderBlock) -> bool:
    """Return whether a block has nothing but projections, rotary positions, a mechanism and pre-norms."""
    heads, feed_forward = block.attention, block.feed_forward
    residuals = (block.around_attention, block.around_feed_forward)
    linear = [heads.query, heads.key, heads.value, heads.output]
    linear += [feed_forward.up, feed_forward.down] if isinstance(feed_forward, FeedForward) else []
    return (
        type(heads) is MultiHead
        and block.cross is None
        and heads.position_role in (None, "rotation")
        and isinstance(heads.positions, Rope | None)
        and heads.convolution is None
        and heads.projection_convolution is None
        and heads.gates is None
        and all(type(residual) is PreNorm for residual in residuals)
        and all(type(layer) is PackedLinear for layer in linear)
    )


def _packed(layer: nn.Module) -> PackedLinear:
    assert isinstance(layer, PackedLinear)
    return layer


def _weights(model: nn.Module) -> Tensor:
    return next(model.parameters())


def _require_fusable(model: nn.Module, form: str) -> Decoder:
    if reason := unfusable_reason(model):
        raise ValueError(f"model has no {form}: {reason}")
    assert isinstance(model, Decoder)
    return model
