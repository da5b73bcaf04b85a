"""A folded model for one source, in numpy: where arrays are this small, calling an operation costs more than doing it.

All paths read the same source, so what the decoder asks of it and what it is told are products with small matrices:

    q . k = norm(x) @ (Wq @ k)        (weights @ v) @ Wo = weights @ (v @ Wo)

`Folded` takes this form for a batch of one. Its memory is that of the folded model.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy import vecdot  # of numpy 2: an older one is as good as none
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from qkv.models.validation import require_length
from qkv.shapes import Rows

if TYPE_CHECKING:
    from qkv.models.fast.fused import Folded, _Heads, _Linear, _Norm, _Reader, _Think, _Writer

Array = NDArray[Any]


class AloneState(NamedTuple):
    """What is remembered while writing; a step writes into it, so it can be continued once; `select` copies."""

    written: tuple[Array, ...]
    """Of the tokens so far, with room for more: (keys, values) rows heads time dim, per block."""
    read: tuple[tuple[Array, Array, Array], ...]
    """Of the source, per block: what x is multiplied with to ask, what is added, and what is told."""
    length: int

    def select(self, rows: Rows) -> "AloneState":
        """The state of these sequences."""
        chosen = _two(rows.numpy())
        return AloneState(tuple(held[:, chosen] for held in self.written), self.read, self.length)


class Alone:
    """`start` and `step` of a folded model on the CPU, for one source."""

    def __init__(self, folded: "Folded"):
        self.config = folded.config
        self.encoder = [_ReaderAlone(block) for block in folded.encoder]
        self.decoder = [_WriterAlone(block) for block in folded.decoder]
        self.source_norm = _Unit(folded.encoder_norm)
        self.predict = _Product(folded.predict, folded.decoder_norm)
        self.letters = folded.letters.numpy()
        self.by_place = [table.numpy() for table in folded.by_place]

    def start(self, inputs: Tensor) -> AloneState:
        """The state before the first token; inputs are (1, time)."""
        time = inputs.shape[1]
        found = self.letters[np.arange(time), inputs[0].numpy()].reshape(time, 4, -1)
        x, projected = found[:, 0], found[:, 1:].swapaxes(0, 1)
        for number, block in enumerate(self.encoder):
            x = block.read(x, projected if number == 0 else block.heads.project(x, slice(0, time)))
        x = self.source_norm(x)
        room = min(time + 4, self.config.max_length)
        written = tuple(np.empty((2, 2, block.heads.heads, room, block.heads.dim), x.dtype) for block in self.decoder)
        return AloneState(written, tuple(block.remember(x) for block in self.decoder), 0)

    def step(self, tokens: Rows, state: AloneState) -> tuple[Tensor, AloneState]:
        """Logits (rows, targets) after one more token each."""
        place, written = state.length, state.written
        require_length(place + 1, self.config.max_length)
        if place == written[0].shape[3]:
            written = tuple(np.concatenate((held, np.empty_like(held)), 3) for held in written)
        found = self.by_place[place].take(_two(tokens.numpy()), 0)
        found = found.reshape(len(found), 4, -1)
        x, projected = found[:, 0], found[:, 1:].swapaxes(0, 1)
        for number, block in enumerate(self.decoder):
            now = projected if number == 0 else block.heads.project(x, slice(place, place + 1))
            x = block.write(x, now, written[number], place, state.read[number])
        logits = self.predict(x)[: tokens.shape[0]]
        return torch.from_numpy(logits), AloneState(written, state.read, place + 1)


class _ReaderAlone:
    """An encoder block."""

    def __init__(self, block: "_Reader"):
        self.heads = _HeadsAlone(block.heads, block.norm)
        self.think = _ThinkAlone(block.think)

    def read(self, x: Array, projected: Array) -> Array:
        """(time, dim), given (q, k, v) x time x (heads dim)."""
        q, k, v = self.heads.split(projected).swapaxes(1, 2)  # heads time dim
        out = np.empty((len(x), self.heads.heads, self.heads.dim), x.dtype)
        np.matmul(_softmax(q @ k.swapaxes(1, 2)), v, out=out.swapaxes(0, 1))
        return self.think(self.heads.output(out.reshape(x.shape), x))


class _WriterAlone:
    """A decoder block, one token at a time."""

    def __init__(self, block: "_Writer"):
        self.heads = _HeadsAlone(block.heads, block.norm)
        self.cross_norm = _Unit(block.cross_norm)
        heads, dim = self.heads.heads, self.heads.dim
        self.query = block.query.weight.numpy().reshape(-1, heads, dim).swapaxes(0, 1)  # heads inputs dim
        self.query_bias = block.query.bias.numpy().reshape(heads, 1, dim)
        self.memory = _Product(block.memory)
        self.told = block.cross_output.weight.numpy().reshape(heads, dim, -1)
        self.told_bias = block.cross_output.bias.numpy() / heads
        self.think = _ThinkAlone(block.think)

    def remember(self, source: Array) -> tuple[Array, Array, Array]:
        """Of a source that is normed: (inputs, heads time), (1, heads time), (heads time, outputs).

        The weights of a head sum to 1, so each head can bring its share of the bias.
        """
        heads, time = self.heads.heads, len(source)
        k, v = self.memory(source).reshape(time, 2, heads, -1).transpose(1, 2, 0, 3)  # heads time dim
        asked = np.empty((self.query.shape[1], heads, time), source.dtype)
        np.matmul(self.query, k.swapaxes(1, 2), out=asked.swapaxes(0, 1))
        bias = np.matmul(self.query_bias, k.swapaxes(1, 2))
        told = np.matmul(v, self.told)
        told += self.told_bias
        return asked.reshape(-1, heads * time), bias.reshape(1, -1), told.reshape(heads * time, -1)

    def write(self, x: Array, projected: Array, written: Array, place: int, read: tuple[Array, Array, Array]) -> Array:
        """(rows, dim), given (q, k, v) x rows x (heads dim); keys and values become those at `place` of `written`."""
        projected = self.heads.split(projected)
        written[:, :, :, place] = projected[1:]
        k, v = written[:, :, :, : place + 1]  # rows heads time dim
        out = _softmax(projected[0][:, :, None] @ k.swapaxes(2, 3)) @ v
        x = self.heads.output(out.reshape(x.shape), x)
        asked, bias, told = read
        scores = self.cross_norm(x).dot(asked)
        scores += bias
        seen = _softmax(scores.reshape(len(x), self.heads.heads, -1)).reshape(scores.shape).dot(told)
        seen += x
        return self.think(seen)


class _HeadsAlone:
    """The projections around an attention; rotary places are turned within them."""

    def __init__(self, folded: "_Heads", norm: "_Norm"):
        self.heads, self.dim = folded.split
        self.norm = _Unit(norm)
        weight, bias = folded.input.weight.numpy(), folded.input.bias.numpy()
        self.weight = weight.reshape(len(weight), 3, -1).swapaxes(0, 1)  # (q, k, v) inputs outputs
        self.bias = bias.reshape(3, 1, -1)
        self.output = _Product(folded.output)
        self.turn = None if folded.turn is None else folded.turn.numpy()[:, 0]  # places heads pairs

    def project(self, x: Array, places: slice) -> Array:
        """(q, k, v) x tokens x (heads dim), of tokens that stand at these places."""
        projected: Array = np.matmul(self.norm(x), self.weight)
        projected += self.bias
        if self.turn is not None:
            pairs = projected[:2].view(self.turn.dtype).reshape(2, len(x), self.heads, -1)
            pairs *= self.turn[places]
        return projected

    def split(self, projected: Array) -> Array:
        """(q, k, v) x tokens x heads x dim."""
        return projected.reshape(3, -1, self.heads, self.dim)


class _ThinkAlone:
    """x + feed_forward(norm(x))"""

    def __init__(self, folded: "_Think"):
        self.enter, self.leave = _Product(folded.enter, folded.norm), _Product(folded.leave)
        self.activation = functional.gelu if folded.is_gelu else folded.activation

    def __call__(self, x: Array) -> Array:
        # transposed it is not contiguous, so torch does not hand it to oneDNN, which starts slowly
        hidden = self.activation(torch.from_numpy(self.enter(x).T)).numpy().T
        return self.leave(hidden, x)


class _Product:
    """x @ weight + bias, of x that is normed first if there is a norm."""

    def __init__(self, linear: "_Linear", norm: "_Norm | None" = None):
        self.weight, self.bias = linear.weight.numpy(), linear.bias.numpy()
        self.norm = None if norm is None else _Unit(norm)

    def __call__(self, x: Array, added: Array | None = None) -> Array:
        out: Array = (x if self.norm is None else self.norm(x)).dot(self.weight)
        out += self.bias
        if added is not None:
            out += added
        return out


class _Unit:
    """A norm of what has mean 0: its root mean square is all that is left to divide by."""

    def __init__(self, norm: "_Norm"):
        (self.dim,) = norm.shape
        self.epsilon = norm.epsilon

    def __call__(self, x: Array) -> Array:
        size = vecdot(x, x)
        size /= self.dim
        size += self.epsilon
        return x / np.sqrt(size, out=size)[:, None]


def _softmax(scores: Array) -> Array:
    """Over the last axis, in place."""
    scores -= np.maximum.reduce(scores, -1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= np.add.reduce(scores, -1, keepdims=True)
    return scores


def _two(rows: Array) -> Array:
    """A single row twice: a product of one row is handed to several threads, which wait for each other."""
    return rows if len(rows) > 1 else np.concatenate((rows, rows))
