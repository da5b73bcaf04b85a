"""Sizes of heads, their decoding state, and the keys and values of another sequence."""

from dataclasses import dataclass

from torch import Tensor

from qkv.attention import State
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
class HeadsState:
    """Decoding state of one multi-head layer."""

    attention: State
    convolution: Tensor | None = None
    """The last tokens or, of a convolution after the projections, their projections."""

    @property
    def length(self) -> int:
        """Number of tokens processed so far."""
        return self.attention.length

    @property
    def bytes(self) -> int:
        """Bytes held."""
        return self.attention.bytes + (0 if self.convolution is None else self.convolution.nbytes)

    def select(self, rows: Rows) -> "HeadsState":
        """Return the state of these batch rows."""
        convolution = None if self.convolution is None else self.convolution[rows]
        return HeadsState(self.attention.select(rows), convolution)


@dataclass(frozen=True)
class Context:
    """Keys and values of another sequence for cross-attention, projected once and used at every step."""

    k: Keys
    v: Values
    mask: Mask | None = None

    def select(self, rows: Rows) -> "Context":
        """Return the context of these batch rows."""
        return Context(self.k[rows], self.v[rows], None if self.mask is None else self.mask[rows])
