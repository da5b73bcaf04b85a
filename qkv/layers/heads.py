"""Sizes of heads, their decoding state, and the keys and values of another sequence."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from qkv.attention import State
from qkv.attention.state import (
    StateValue,
    check_joinable,
    join_offsets,
    join_rows,
    needed_places,
    pad_front,
    put_offsets,
    under_prefix,
    with_prefix,
)
from qkv.layers.undo_log import UndoLog
from qkv.shapes import Keys, Mask, Rows, Values


@dataclass(frozen=True)
class Heads:
    """Number and sizes of heads; None means the default."""

    count: int
    key_heads: int | None = None
    """Heads of keys and values, shared by groups of query heads; default: `count`."""
    key_dim: int | None = None
    """Width of a query or key; default: dim / count."""
    value_dim: int | None = None
    """Width of a value; default: dim / count."""

    def resolve(self, dim: int) -> tuple[int, int, int, int]:
        """Return (heads, key_heads, key_dim, value_dim) for a model of this width."""
        given = {"heads": self.count, "key_heads": self.key_heads, "key_dim": self.key_dim, "value_dim": self.value_dim}
        for name, value in given.items():
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        key_heads = self.count if self.key_heads is None else self.key_heads
        if self.count % key_heads:
            raise ValueError(f"key_heads={key_heads} must divide heads={self.count}")
        if dim % self.count and None in (self.key_dim, self.value_dim):
            raise ValueError(f"heads={self.count} must divide dim={dim}, unless key_dim and value_dim are given")
        key_dim = dim // self.count if self.key_dim is None else self.key_dim
        value_dim = dim // self.count if self.value_dim is None else self.value_dim
        return self.count, key_heads, key_dim, value_dim


@dataclass(frozen=True)
class HeadsState(StateValue):
    """Decoding state of one multi-head layer."""

    attention: State
    convolution: Tensor | None = None
    """The last tokens or, of a convolution after the projections, their projections."""
    offsets: Rows | None = None
    """Place of each row's position 0; None: place 0 in every row."""
    logs: bool = False
    """Whether a step records what it reads, so that its tokens can be taken back."""
    log: UndoLog | None = None
    """The last step, if it was recorded."""

    @property
    def rows(self) -> int:
        """Number of sequences."""
        return self.attention.rows

    @property
    def length(self) -> int:
        """Number of tokens processed so far, padding included."""
        return self.attention.length

    @property
    def bytes(self) -> int:
        """Bytes held."""
        return self.attention.bytes + (0 if self.convolution is None else self.convolution.nbytes)

    def select(self, rows: Rows) -> "HeadsState":
        """Return the state of these batch rows."""
        convolution, offsets = (None if x is None else x[rows] for x in (self.convolution, self.offsets))
        return HeadsState(self.attention.select(rows), convolution, offsets, self.logs)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the mechanism, the convolution and the offsets."""
        optional = {"convolution": self.convolution, "offsets": self.offsets}
        named = {name: x for name, x in optional.items() if x is not None}
        return with_prefix("attention", self.attention.tensors()) | named

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> "HeadsState":
        """Return a state of these tensors."""
        convolution = None if self.convolution is None else tensors["convolution"]
        attention = self.attention.with_tensors(under_prefix("attention", tensors))
        return HeadsState(attention, convolution, tensors.get("offsets"), self.logs)

    @property
    def place_axes(self) -> dict[str, int]:
        """Axis of the tokens in the tensors of the mechanism."""
        return {f"attention.{name}": axis for name, axis in self.attention.place_axes.items()}

    def settled(self) -> "HeadsState":
        """Return the state with the mechanism's state settled."""
        return replace(self, attention=self.attention.settled())

    @property
    def needs_log(self) -> bool:
        """Whether the tokens of a step can be taken back only with a record of it."""
        return self.convolution is not None or self.attention.rewindable < self.attention.length

    @property
    def rewindable(self) -> int:
        """Number of tokens of a KV cache, unless there is a convolution; else those of a recorded step."""
        recorded = 0 if self.log is None else self.log.tokens
        return recorded if self.convolution is not None else max(recorded, self.attention.rewindable)

    def rewind(self, count: int) -> "HeadsState":
        """Return the state without its last `count` tokens."""
        self._require_rewindable(count)
        if count == 0:
            return self
        left = 0 if self.log is None else self.log.tokens - count
        attention, convolution = self.attention, None
        if self.log is not None and self.log.convolved is not None:
            convolution = self.log.convolved.state_after(left)
        if attention.rewindable >= count:
            return replace(self, attention=attention.rewind(count), convolution=convolution, log=None)
        assert self.log is not None
        return replace(self, attention=self.log.state_after(left), convolution=convolution, log=None)

    def with_undo_log(self) -> "HeadsState":
        """Return a state whose steps are recorded, so that the tokens of the last one can be taken back."""
        return replace(self, logs=True)

    def join(self, *others: "HeadsState") -> "HeadsState":
        """Return one state of all rows; those of a shorter state get a larger offset."""
        states = (self, *others)
        check_joinable(states)
        attention = self.attention.join(*(state.attention for state in others))
        held = [state.convolution for state in states if state.convolution is not None]
        if len(held) not in (0, len(states)):
            raise ValueError(f"states cannot be joined: {len(held)} of {len(states)} have a convolution")
        lengths, rows = [state.length for state in states], [state.rows for state in states]
        offsets = join_offsets([state.offsets for state in states], lengths, rows, self.device)
        return HeadsState(attention, join_rows("convolution", held) if held else None, offsets, self.logs)

    def put(self, rows: Rows, other: "HeadsState") -> "HeadsState":
        """Write all rows of `other` over these rows, in place."""
        offsets = put_offsets((self.offsets, other.offsets), (self.length, other.length), self.rows, rows)
        attention = self.attention.put(rows, other.attention)
        if self.convolution is not None and other.convolution is not None:
            self.convolution[rows] = other.convolution
        return HeadsState(attention, self.convolution, offsets, self.logs)

    def drop_places(self, count: int) -> "HeadsState":
        """Return the state without its first `count` places; every row keeps its positions."""
        offsets = self.offsets
        if offsets is None:
            offsets = torch.zeros(self.rows, dtype=torch.int64, device=self.device)
        offsets = offsets - count
        attention = self.attention.drop_places(count)
        return replace(self, attention=attention, offsets=offsets if bool(offsets.any()) else None, log=None)


@dataclass(frozen=True)
class Context(StateValue):
    """Keys and values of another sequence for cross-attention, projected once and used at every step."""

    k: Keys
    v: Values
    mask: Mask | None = None

    def select(self, rows: Rows) -> "Context":
        """Return the context of these batch rows."""
        return Context(self.k[rows], self.v[rows], None if self.mask is None else self.mask[rows])

    def tensors(self) -> dict[str, Tensor]:
        """Return keys, values and the mask, if there is one."""
        return {"k": self.k, "v": self.v} | ({} if self.mask is None else {"mask": self.mask})

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> "Context":
        """Return a context of these tensors."""
        return Context(tensors["k"], tensors["v"], tensors.get("mask"))

    def join(self, *others: "Context") -> "Context":
        """Return one context of all rows; shorter ones get padding in front, which the mask hides."""
        contexts = (self, *others)
        check_joinable(contexts)
        widest = max(context.k.shape[2] for context in contexts)
        k = join_rows("k", [pad_front(context.k, 2, widest) for context in contexts])
        v = join_rows("v", [pad_front(context.v, 2, widest) for context in contexts])
        visible = [
            x.k.new_ones(x.k.shape[0], x.k.shape[2], dtype=torch.bool) if x.mask is None else x.mask for x in contexts
        ]
        mask = join_rows("mask", [pad_front(x, 1, widest) for x in visible])
        return Context(k, v, None if bool(mask.all()) else mask)

    def drop_places(self, count: int) -> "Context":
        """Return the same context: its places are those of another sequence."""
        return self

    def compact(self) -> "Context":
        """Return the context without the places that the mask hides in every row."""
        if self.mask is None:
            return self
        kept, mask = needed_places(self.mask)
        return Context(self.k[:, :, kept], self.v[:, :, kept], mask)

    @property
    def bytes(self) -> int:
        """Bytes of the keys and values."""
        return self.k.nbytes + self.v.nbytes
