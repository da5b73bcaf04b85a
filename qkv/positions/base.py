"""The interface of a position scheme: positional information for a permutation-equivariant mechanism.

A scheme declares what it gives: a vector added to the "input", a "rotation" of queries and keys, a
score "bias", or a "decay" of weights. A mechanism declares what it accepts. A pair that shares nothing
raises an error with the reason.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from qkv.cost import Cost, Shape, parameters_only
from qkv.registry import Registry
from qkv.shapes import Bias, Decay, KeyIndex, Queries, QueryIndex


@dataclass(frozen=True)
class Sizes:
    """Sizes of the model that a scheme is built for."""

    dim: int
    heads: int
    key_dim: int
    length: int
    """Length of the longest sequence."""
    bidirectional: bool


class Positions(nn.Module, ABC):
    """A position scheme. Its methods take the positions of tokens, so a sequence can be continued anywhere."""

    gives: ClassVar[frozenset[str]]
    """Subset of "input", "rotation", "bias", "decay": the forms in which it encodes positions."""
    relative: ClassVar[bool] = False
    """Whether scores depend only on differences of positions."""

    @property
    def kind(self) -> str:
        """Registry name, or the class name of a scheme that is not registered."""
        return type(self).__name__

    @classmethod
    @abstractmethod
    def from_sizes(cls, sizes: Sizes) -> "Positions":
        """Build the default instance for a model of these sizes."""

    @classmethod
    def role_for(cls, accepts: frozenset[str]) -> str | None:
        """Return the form that this scheme takes with a mechanism that accepts these; None if they share nothing."""
        shared = cls.gives & (accepts | {"input"})
        return min(shared, key=("input", "rotation", "bias", "decay").index, default=None)

    @classmethod
    def serves(cls, accepts: frozenset[str]) -> bool:
        """Return whether this scheme works with a mechanism that accepts these: `Rope.serves(Taylor.accepts)`."""
        return cls.role_for(accepts) is not None

    def rotate(self, x: Queries, index: QueryIndex) -> Queries:
        """Rotate queries or keys by their positions; only for schemes that give a "rotation".

        `index` is (time,), or (batch, time) if the rows of a state begin at different places.
        """
        raise NotImplementedError(f"positions {self.kind!r} give no rotation")

    def bias(self, q: Queries, query_index: QueryIndex, key_index: KeyIndex) -> Bias:
        """Return the bias of each pair's score; only for schemes that give a "bias"."""
        raise NotImplementedError(f"positions {self.kind!r} give no bias")

    def decay(self, q: Queries) -> Decay:
        """Return the decay rate of each head; only for schemes that give a "decay"."""
        raise NotImplementedError(f"positions {self.kind!r} give no decay")

    def cost(self, shape: Shape) -> Cost:
        """Return the learned parameters; a scheme that multiplies matrices adds them."""
        return parameters_only(self)


def check_index(x: Tensor, index: Tensor) -> None:
    """Raise unless `index` has one position per token of `x` (batch, ..., time, dim); a single one would broadcast."""
    if index.shape not in (x.shape[-2:-1], (x.shape[0], x.shape[-2])):
        raise ValueError(
            f"index must hold one position per token, shape (time,) = ({x.shape[-2]},) or (batch, time), "
            f"got {tuple(index.shape)}"
        )


schemes: Registry[Positions] = Registry("position scheme", group="qkv.positions")
register = schemes.register


def incompatible_error(positions: Positions, kind: str, accepts: frozenset[str]) -> ValueError:
    """Return the error for an impossible pair; it names both parts and the schemes that work."""
    gives = " or ".join(sorted(positions.gives))
    others = ", ".join(sorted(name for name in schemes if schemes[name].serves(accepts)))
    return ValueError(
        f"positions {positions.kind!r} give a {gives}, which attention kind {kind!r} does not accept here; "
        f"for {kind!r} use {others}"
    )
