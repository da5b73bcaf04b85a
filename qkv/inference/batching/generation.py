"""One request of a batcher."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from qkv.decode import SearchLimits, argmax_token
from qkv.decode.single_path import TokenChooser


@dataclass(eq=False)
class Generation:
    """The continuation of one prompt, token by token.

    Its tokens and log-probabilities are those of `qkv.decode.stream` for this prompt alone, END included. Both
    callbacks run on the thread that calls `Batcher.step`; they should return quickly, and may submit and cancel.
    """

    prompt: Sequence[int]
    """Ids; the last is the token that the search starts from, `limits.start`."""
    limits: SearchLimits
    choose: TokenChooser = argmax_token
    """How a token is chosen: `argmax_token`, or a `sampler` with a seed of its own."""
    on_token: Callable[[int, float], None] | None = None
    """Called with each token and its log-probability."""
    on_end: Callable[[str], None] | None = None
    """Called once: "stop" (the model ended), "length", "canceled", or "error: " and the reason."""
    canceled: bool = field(default=False, init=False)
    """Whether `cancel` was called."""

    def cancel(self) -> None:
        """End this generation before the next step of its batcher; from any thread."""
        self.canceled = True
