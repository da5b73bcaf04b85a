"""The contract of a position scheme: where tokens stand, told to a mechanism that knows only sets.

A scheme says what it gives: something added to the "input", a "rotation" of queries and keys, a
score "bias", or a "decay" of weights. A mechanism says what it accepts. A pair that shares nothing
is refused, with the reason.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from qkv.cost import Cost, Shape, learned
from qkv.registry import Registry
from qkv.shapes import Bias, Decay, KeyIndex, Queries, QueryIndex


@dataclass(frozen=True)
class Sizes:
    """What a scheme may need to know of the model it is built for."""

    dim: int
    heads: int
    key_dim: int
    length: int
    """The longest sequence."""
    bidirectional: bool


class Positions(nn.Module, ABC):
    """A position scheme. It is told the indices of tokens, so a sequence can be continued anywhere."""

    gives: ClassVar[frozenset[str]]
    """Of "input", "rotation", "bias", "decay": how it can tell a place."""
    relative: ClassVar[bool] = False
    """Whether scores stay the same if all places move on together."""

    @property
    def kind(self) -> str:
        """The registry name; of a scheme that is in no registry, the name of its class."""
        return type(self).__name__

    @classmethod
    @abstractmethod
    def fit(cls, sizes: Sizes) -> "Positions":
        """The usual one for a model of these sizes."""

    @classmethod
    def role_for(cls, accepts: frozenset[str]) -> str | None:
        """The way in which this scheme serves a mechanism that accepts these; None if it cannot."""
        shared = cls.gives & (accepts | {"input"})
        return min(shared, key=("input", "rotation", "bias", "decay").index, default=None)

    @classmethod
    def serves(cls, accepts: frozenset[str]) -> bool:
        """Whether this scheme goes with a mechanism that accepts these: `Rope.serves(Taylor.accepts)`."""
        return cls.role_for(accepts) is not None

    def rotate(self, x: Queries, index: QueryIndex) -> Queries:
        """Queries or keys, turned by their places; only of schemes that give a "rotation"."""
        raise NotImplementedError(f"positions {self.kind!r} give no rotation")

    def bias(self, q: Queries, query_index: QueryIndex, key_index: KeyIndex) -> Bias:
        """What to add to the score of each pair; only of schemes that give a "bias"."""
        raise NotImplementedError(f"positions {self.kind!r} give no bias")

    def decay(self, q: Queries) -> Decay:
        """How fast each head forgets; only of schemes that give a "decay"."""
        raise NotImplementedError(f"positions {self.kind!r} give no decay")

    def cost(self, shape: Shape) -> Cost:
        """What it has learned; a scheme that multiplies matrices says so."""
        return learned(self)


def check_index(x: Tensor, index: Tensor) -> None:
    """One place for each token of `x` (..., time, dim), or an error: a single one would serve all tokens unasked."""
    if index.shape != x.shape[-2:-1]:
        raise ValueError(
            f"index must hold the place of each token, shape (time,) = ({x.shape[-2]},), got {tuple(index.shape)}"
        )


schemes: Registry[Positions] = Registry("position scheme", group="qkv.positions")
register = schemes.register


def refuse(positions: Positions, kind: str, accepts: frozenset[str]) -> ValueError:
    """The error for an impossible pair: it names both parts and what would work."""
    needs = " or ".join(sorted(positions.gives))
    others = ", ".join(sorted(name for name in schemes if schemes[name].serves(accepts)))
    return ValueError(
        f"positions {positions.kind!r} work by a {needs}, which attention kind {kind!r} cannot take in this way; "
        f"for {kind!r} use {others}"
    )
