"""The model interface of decoding: start, take one more token, reorder the state."""

from typing import Protocol, TypeVar, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from qkv.shapes import Mask, Rows

Inputs = Int[Tensor, "batch time"]
Logits = Float[Tensor, "rows vocabulary"]

Same = TypeVar("Same")  # typing.Self, which beartype cannot check in single methods


@runtime_checkable
class DecodingState(Protocol):
    """State of a model after the tokens so far, such as a KV cache; one row per sequence."""

    def select(self: Same, rows: Rows) -> Same:
        """Return the state of these rows: reordered, repeated or dropped."""
        ...


S = TypeVar("S", bound=DecodingState)


@runtime_checkable
class Decodable(Protocol[S]):
    """A model that can be decoded step by step.

    A search passes each state to `step` at most once, so a model may update it in place.
    """

    def start(self, inputs: Inputs, mask: Mask | None) -> S:
        """Return the state before the first token, one row per input; `mask` (batch, time) is False on padding."""
        ...

    def step(self, tokens: Rows, state: S) -> tuple[Logits, S]:
        """Return the next-token logits after these tokens, one token per row of the state, and the new state."""
        ...
