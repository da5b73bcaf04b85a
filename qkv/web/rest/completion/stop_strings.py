"""Find stop strings in a text that arrives piece by piece, wherever the pieces end.

The text ends before the stop string that is complete first; of several that end at the same character, before the
longest. So the result does not depend on the pieces. A text that could be the beginning of a stop string is held back.
"""

from collections.abc import Sequence


class StopStrings:
    """The part of a text before the first stop string."""

    def __init__(self, stops: Sequence[str]):
        self.stops = tuple(stops)
        self.found = False
        self._held = ""

    def push(self, text: str) -> str:
        """Take the next piece; return what is certain to belong to the text, which may be less or more."""
        if self.found:
            return ""
        text = self._held + text
        ends = [(start + len(stop), start) for stop in self.stops if (start := text.find(stop)) >= 0]
        if ends:
            self.found, self._held = True, ""
            return text[: min(ends)[1]]
        keep = max((_overlap(text, stop) for stop in self.stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """Return what was held back, at the end of the text."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of the text that begins a stop string without completing it."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
