"""One continuation while it is generated: tokens come in, text that is certain goes out."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from qkv.data.tokenizer import StreamDecoder
from qkv.web.rest.completion.stop_strings import StopStrings

TopTokens = list[tuple[str, float]]
"""The most probable tokens and their log-probabilities."""


@dataclass(frozen=True)
class TokenEntry:
    """A token with its log-probability."""

    text: str
    log_probability: float
    top: TopTokens
    offset: int
    """Characters of the continuation before it."""


@dataclass
class ChoiceDelta:
    """What is new since the last one."""

    text: str = ""
    entries: list[TokenEntry] = field(default_factory=list)
    finish_reason: str | None = None


class CompletionChoice:
    """Decodes tokens, ends at stop strings, and counts."""

    def __init__(self, decoder: StreamDecoder, stops: tuple[str, ...], end: int, describe: Callable[[int], str] | None):
        self.decoder, self.stops, self.end_token, self.describe = decoder, StopStrings(stops), end, describe
        self.tokens = 0
        """Generated tokens, up to the one that completed a stop string; the end token does not count."""
        self.finish_reason: str | None = None
        self._decoded = self._released = 0
        self._pieces: list[str] = []
        self._entries: list[TokenEntry] = []

    def add(self, token: int, log_probability: float, top: TopTokens) -> bool:
        """Take a token; return whether a stop string is complete, so that no further one is needed."""
        if self.finish_reason is not None or token == self.end_token:
            return False
        self.tokens += 1
        text = self.decoder.push(token)
        if self.describe is not None:
            self._entries.append(TokenEntry(self.describe(token), log_probability, top, self._decoded))
        self._decoded += len(text)
        self._release(self.stops.push(text))
        if self.stops.found:
            self._finish("stop")
        return self.stops.found

    def end(self, reason: str) -> None:
        """Take the end, "stop" or "length"; one that a stop string has ended stays as it is."""
        if self.finish_reason is not None:
            return
        self._release(self.stops.push(self.decoder.flush()))
        if self.stops.found:
            self._finish("stop")
            return
        self._release(self.stops.flush())
        self.finish_reason = reason

    def take(self) -> ChoiceDelta | None:
        """Return what is new; None: nothing. The finish reason comes with the last text."""
        is_finished = self.finish_reason is not None
        if not self._pieces and not is_finished:
            return None
        ready = len(self._entries)
        if not is_finished:
            ready = next((i for i, one in enumerate(self._entries) if one.offset >= self._released), ready)
        delta = ChoiceDelta("".join(self._pieces), self._entries[:ready], self.finish_reason)
        self._pieces, self._entries = [], self._entries[ready:]
        return delta

    def _release(self, text: str) -> None:
        if text:
            self._released += len(text)
            self._pieces.append(text)

    def _finish(self, reason: str) -> None:
        """End at a stop string: the tokens that it was made of are not reported."""
        self._entries = [one for one in self._entries if one.offset < self._released]
        self.finish_reason = reason


def logprobs_record(entries: list[TokenEntry]) -> dict[str, Any]:
    """Return the tokens in OpenAI's layout."""
    return {
        "tokens": [one.text for one in entries],
        "token_logprobs": [one.log_probability for one in entries],
        "top_logprobs": [dict(one.top) for one in entries],
        "text_offset": [one.offset for one in entries],
    }
