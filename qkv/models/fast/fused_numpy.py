"""A fused model for one source, in numpy: for such small arrays, a call costs more than its work.

All hypotheses attend to the same source, so cross attention becomes products with small matrices:

    q . k = norm(x) @ (Wq @ k)        (weights @ v) @ Wo = weights @ (v @ Wo)

`FusedEncoderDecoder` uses this form for a batch of one. Its weights are views of those of the fused model.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy import vecdot
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from qkv.models.validation import require_length
from qkv.shapes import Rows

if TYPE_CHECKING:
    from qkv.models.fast.fused import (
        FusedEncoderDecoder,
        _FusedDecoderBlock,
        _FusedEncoderBlock,
        _FusedFeedForward,
        _FusedHeads,
        _Linear,
        _Norm,
    )

Array = NDArray[Any]


class SourceProducts(NamedTuple):
    """Cross attention to one source, as matrices of one block."""

    scores: Array
    """Normed input -> scores: (dim, heads * time)."""
    bias: Array
    """Added to the scores: (1, heads * time)."""
    output: Array
    """Weights -> output: (heads * time, dim)."""


class NumpyState(NamedTuple):
    """The decoding state. A step writes into it, so it can be continued only once; `select` copies."""

    kv_cache: tuple[Array, ...]
    """Keys and values of the tokens so far, with spare capacity: ((k, v), rows, heads, time, dim) per block."""
    source: tuple[SourceProducts, ...]
    """Cross attention to the source, per block."""
    length: int

    def select(self, rows: Rows) -> "NumpyState":
        """Return the state of these rows."""
        selected = _at_least_two(rows.numpy())
        return NumpyState(tuple(cache[:, selected] for cache in self.kv_cache), self.source, self.length)


class NumpyDecoder:
    """`start` and `step` of a fused model on the CPU, for one source."""

    def __init__(self, fused: "FusedEncoderDecoder"):
        self.config = fused.config
        self.encoder = [_NumpyEncoderBlock(block) for block in fused.encoder]
        self.decoder = [_NumpyDecoderBlock(block) for block in fused.decoder]
        self.source_norm = _NumpyNorm(fused.encoder_norm)
        self.lm_head = _NumpyLinear(fused.lm_head, fused.decoder_norm)
        self.source_table = fused.source_table.numpy()
        self.target_tables = [table.numpy() for table in fused.target_tables]

    def start(self, inputs: Tensor) -> NumpyState:
        """Encode the source (1, time) and return the state before the first token."""
        time = inputs.shape[1]
        entries = self.source_table[np.arange(time), inputs[0].numpy()].reshape(time, 4, -1)
        x, qkv = entries[:, 0], entries[:, 1:].swapaxes(0, 1)
        for number, block in enumerate(self.encoder):
            x = block.forward(x, qkv if number == 0 else block.heads.project(x, slice(0, time)))
        x = self.source_norm(x)
        capacity = min(time + 4, self.config.max_length)
        kv_cache = tuple(
            np.empty((2, 2, block.heads.heads, capacity, block.heads.dim), x.dtype) for block in self.decoder
        )
        return NumpyState(kv_cache, tuple(block.source_products(x) for block in self.decoder), 0)

    def step(self, tokens: Rows, state: NumpyState) -> tuple[Tensor, NumpyState]:
        """Return logits (rows, targets) after one more token per row, and the new state."""
        position, kv_cache = state.length, state.kv_cache
        require_length(position + 1, self.config.max_length)
        if position == kv_cache[0].shape[3]:
            kv_cache = tuple(np.concatenate((cache, np.empty_like(cache)), 3) for cache in kv_cache)
        entries = self.target_tables[position].take(_at_least_two(tokens.numpy()), 0)
        entries = entries.reshape(len(entries), 4, -1)
        x, qkv = entries[:, 0], entries[:, 1:].swapaxes(0, 1)
        for number, block in enumerate(self.decoder):
            qkv = qkv if number == 0 else block.heads.project(x, slice(position, position + 1))
            x = block.step(x, qkv, kv_cache[number], position, state.source[number])
        logits = self.lm_head(x)[: tokens.shape[0]]
        return torch.from_numpy(logits), NumpyState(kv_cache, state.source, position + 1)


class _NumpyEncoderBlock:
    """An encoder block."""

    def __init__(self, block: "_FusedEncoderBlock"):
        self.heads = _NumpyHeads(block.heads, block.norm)
        self.feed_forward = _NumpyFeedForward(block.feed_forward)

    def forward(self, x: Array, qkv: Array) -> Array:
        """Return (time, dim), given ((q, k, v), time, heads * dim)."""
        q, k, v = self.heads.split(qkv).swapaxes(1, 2)  # each [heads, time, dim]
        out = np.empty((len(x), self.heads.heads, self.heads.dim), x.dtype)
        np.matmul(_softmax(q @ k.swapaxes(1, 2)), v, out=out.swapaxes(0, 1))
        return self.feed_forward(self.heads.output(out.reshape(x.shape), x))


class _NumpyDecoderBlock:
    """A decoder block, one token at a time."""

    def __init__(self, block: "_FusedDecoderBlock"):
        self.heads = _NumpyHeads(block.heads, block.norm)
        self.cross_norm = _NumpyNorm(block.cross_norm)
        heads, dim = self.heads.heads, self.heads.dim
        self.query = block.query.weight.numpy().reshape(-1, heads, dim).swapaxes(0, 1)  # [heads, inputs, dim]
        self.query_bias = block.query.bias.numpy().reshape(heads, 1, dim)
        self.key_value = _NumpyLinear(block.key_value)
        self.output = block.cross_output.weight.numpy().reshape(heads, dim, -1)  # [heads, dim, outputs]
        self.output_bias = block.cross_output.bias.numpy() / heads
        self.feed_forward = _NumpyFeedForward(block.feed_forward)

    def source_products(self, source: Array) -> SourceProducts:
        """Return the matrices of cross attention to a normed source.

        The weights of a head sum to 1, so each head adds its share of the output bias.
        """
        heads, time = self.heads.heads, len(source)
        k, v = self.key_value(source).reshape(time, 2, heads, -1).transpose(1, 2, 0, 3)  # each [heads, time, dim]
        scores = np.empty((self.query.shape[1], heads, time), source.dtype)
        np.matmul(self.query, k.swapaxes(1, 2), out=scores.swapaxes(0, 1))
        bias = np.matmul(self.query_bias, k.swapaxes(1, 2))
        output = np.matmul(v, self.output)
        output += self.output_bias
        return SourceProducts(scores.reshape(-1, heads * time), bias.reshape(1, -1), output.reshape(heads * time, -1))

    def step(self, x: Array, qkv: Array, kv_cache: Array, position: int, source: SourceProducts) -> Array:
        """Return (rows, dim), given ((q, k, v), rows, heads * dim); k and v are written to `kv_cache` at `position`."""
        qkv = self.heads.split(qkv)
        kv_cache[:, :, :, position] = qkv[1:]
        k, v = kv_cache[:, :, :, : position + 1]  # each [rows, heads, time, dim]
        out = _softmax(qkv[0][:, :, None] @ k.swapaxes(2, 3)) @ v
        x = self.heads.output(out.reshape(x.shape), x)
        scores = self.cross_norm(x).dot(source.scores)
        scores += source.bias
        weights = _softmax(scores.reshape(len(x), self.heads.heads, -1)).reshape(scores.shape)
        attended = weights.dot(source.output)
        attended += x
        return self.feed_forward(attended)


class _NumpyHeads:
    """The projections around an attention, with rotary positions applied."""

    def __init__(self, fused: "_FusedHeads", norm: "_Norm"):
        self.heads, self.dim = fused.split
        self.norm = _NumpyNorm(norm)
        weight, bias = fused.input.weight.numpy(), fused.input.bias.numpy()
        self.weight = weight.reshape(len(weight), 3, -1).swapaxes(0, 1)  # [(q, k, v), inputs, outputs]
        self.bias = bias.reshape(3, 1, -1)
        self.output = _NumpyLinear(fused.output)
        self.rotation = None if fused.rotation is None else fused.rotation.numpy()[:, 0]  # [positions, heads, pairs]

    def project(self, x: Array, positions: slice) -> Array:
        """Return ((q, k, v), tokens, heads * dim) of tokens at these positions."""
        qkv: Array = np.matmul(self.norm(x), self.weight)
        qkv += self.bias
        if self.rotation is not None:
            pairs = qkv[:2].view(self.rotation.dtype).reshape(2, len(x), self.heads, -1)
            pairs *= self.rotation[positions]
        return qkv

    def split(self, qkv: Array) -> Array:
        """Return ((q, k, v), tokens, heads, dim)."""
        return qkv.reshape(3, -1, self.heads, self.dim)


class _NumpyFeedForward:
    """x + feed_forward(norm(x))"""

    def __init__(self, fused: "_FusedFeedForward"):
        self.up, self.down = _NumpyLinear(fused.up, fused.norm), _NumpyLinear(fused.down)
        self.activation = functional.gelu if fused.is_gelu else fused.activation

    def __call__(self, x: Array) -> Array:
        # transposed it is not contiguous, so torch does not send it to oneDNN, which starts slowly
        hidden = self.activation(torch.from_numpy(self.up(x).T)).numpy().T
        return self.down(hidden, x)


class _NumpyLinear:
    """x @ weight + bias; x is normed first if there is a norm."""

    def __init__(self, linear: "_Linear", norm: "_Norm | None" = None):
        self.weight, self.bias = linear.weight.numpy(), linear.bias.numpy()
        self.norm = None if norm is None else _NumpyNorm(norm)

    def __call__(self, x: Array, residual: Array | None = None) -> Array:
        out: Array = (x if self.norm is None else self.norm(x)).dot(self.weight)
        out += self.bias
        if residual is not None:
            out += residual
        return out


class _NumpyNorm:
    """A LayerNorm of inputs with mean 0: division by the root mean square."""

    def __init__(self, norm: "_Norm"):
        (self.dim,) = norm.shape
        self.epsilon = norm.epsilon

    def __call__(self, x: Array) -> Array:
        variance = vecdot(x, x)
        variance /= self.dim
        variance += self.epsilon
        return x / np.sqrt(variance, out=variance)[:, None]


def _softmax(scores: Array) -> Array:
    """Compute softmax over the last axis, in place."""
    scores -= np.maximum.reduce(scores, -1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= np.add.reduce(scores, -1, keepdims=True)
    return scores


def _at_least_two(rows: Array) -> Array:
    """Repeat a single row: the product of one row is split over several threads, which wait for each other."""
    return rows if len(rows) > 1 else np.concatenate((rows, rows))
