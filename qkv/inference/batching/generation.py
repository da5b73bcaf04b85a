"""One request of a batcher, and the row that serves it."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from qkv.decode import SearchLimits, argmax_token
from qkv.decode.single_path import TokenChooser

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Generation:
    """The continuation of one prompt, token by token.

    Its tokens and log-probabilities are those of `qkv.decode.stream` for this prompt alone, END included. Both
    callbacks run on the thread that calls `Batcher.step`. They should return quickly; they may submit and cancel.
    """

    prompt: Sequence[int]
    """Ids; the last is the token that the search starts from, `limits.start`."""
    limits: SearchLimits
    choose: TokenChooser = argmax_token
    """`argmax_token`, or a `sampler` with a seed of its own. It is asked for source 0, as if the row were alone."""
    on_token: Callable[[int, float], None] | None = None
    """Called with each token and its log-probability."""
    on_end: Callable[[str], None] | None = None
    """Called once, last: "stop" (the model ended), "length", "canceled", or "error: " and the reason."""
    canceled: bool = field(default=False, init=False)
    """Whether `cancel` was called."""
    submitted: bool = field(default=False, init=False)
    """Whether a batcher has accepted it."""

    def cancel(self) -> None:
        """End this generation before the next round of its batcher; from any thread."""
        self.canceled = True


@dataclass(eq=False)
class BatchRow:
    """A generation on its way: waiting, then with a state."""

    generation: Generation
    ids: tuple[int, ...]
    """The prompt without its last token: what a state is made of."""
    token: int
    """The token to feed next."""
    places: int
    """Number of places that its state may grow to."""
    position: int = 0
    """Number of tokens generated."""
    reason: str | None = None
    """How it ended; None while it goes on."""

    @property
    def length(self) -> int:
        """Number of tokens in its state."""
        return len(self.ids) + self.position

    def take(self, token: int, log_probability: float) -> None:
        """Pass a token on, and end the row if it was the last."""
        self.token = token
        self.position += 1
        limits, on_token = self.generation.limits, self.generation.on_token
        if token == limits.end:
            self.reason = "stop"
        elif self.position == limits.max_length:
            self.reason = "length"
        if on_token is not None:
            try:
                on_token(token, log_probability)
            except Exception as error:  # noqa: BLE001 - the other rows go on
                self.fail(f"on_token raised {describe(error)}")

    def fail(self, what: str) -> None:
        """End the row with an error."""
        self.reason = f"error: {what}"

    def finish(self) -> None:
        """Report how the row ended; an error in `on_end` is logged, since nobody else can learn of it."""
        assert self.reason is not None
        if self.generation.on_end is not None:
            try:
                self.generation.on_end(self.reason)
            except Exception:
                log.exception("on_end of a generation raised an error")


def describe(error: Exception) -> str:
    """Return the class and the message of an error."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
