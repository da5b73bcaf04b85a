"""All that decoding knows of a model: how it starts, how it takes one more token, how its state is reordered."""

from typing import Protocol, TypeVar, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from qkv.shapes import Mask, Rows

Inputs = Int[Tensor, "batch time"]
Logits = Float[Tensor, "rows vocabulary"]

Same = TypeVar("Same")  # typing.Self, which beartype cannot check in single methods


@runtime_checkable
class State(Protocol):
    """What a model remembers of the tokens it was given, one row per sequence."""

    def select(self: Same, rows: Rows) -> Same:
        """The state of these rows: reordered, repeated or left out."""
        ...


S = TypeVar("S", bound=State)


@runtime_checkable
class Decodable(Protocol[S]):
    """A model that can be decoded.

    A state is continued at most once by a search: a model may write into it.
    """

    def start(self, inputs: Inputs, mask: Mask | None) -> S:
        """The state before the first token, one row per input; `mask` (batch, time) is False on padding."""
        ...

    def step(self, tokens: Rows, state: S) -> tuple[Logits, S]:
        """Logits of what follows these tokens, one per row of the state, and the state after them."""
        ...
