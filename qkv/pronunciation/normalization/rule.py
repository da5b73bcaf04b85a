"""Tokens of a text, the words before and after a token, and rules that read a token."""

import re
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from qkv.pronunciation.arpabet import Phones
from qkv.pronunciation.normalization.values.numbers import Words

_NEXT_WORD = re.compile(r"[ \t\u00a0]{0,4}([^\W\d_]{1,40}(?:['’][^\W\d_]{1,10})?)")
_HISTORY = 4


class SpokenToken(NamedTuple):
    """A stretch of a text and the words that are said for it."""

    text: str
    start: int
    """Index of its first character in the text."""
    kind: str
    """word, space, punctuation, symbol (not pronounced), or what it was read as: cardinal, date, money, ..."""
    words: Words = ()
    """Words to pronounce; a single capital letter is the name of a letter, unless the kind is word."""

    @property
    def end(self) -> int:
        """Index after its last character."""
        return self.start + len(self.text)


class Neighbors:
    """Words on both sides of the token that is being read."""

    def __init__(self, text: str, lookup: "Lookup"):
        self.text = text
        self.lookup = lookup
        self._before: deque[SpokenToken] = deque(maxlen=_HISTORY)
        self.line_is_capitals = False
        """Whether the text is written in capitals, so that capitals say nothing."""

    def add(self, token: SpokenToken) -> None:
        """Append a token that was read; spaces are left out."""
        if token.kind != "space":
            self._before.append(token)

    def token_before(self, index: int = 1) -> SpokenToken | None:
        """Return the token before this one; 2 is the one before that."""
        return self._before[-index] if len(self._before) >= index else None

    def before(self, index: int = 1) -> str:
        """Return the text of the token before; empty at the beginning."""
        token = self.token_before(index)
        return token.text if token else ""

    def after(self, end: int) -> str:
        """Return the word that follows an index after spaces at most; empty if there is none."""
        found = _NEXT_WORD.match(self.text, end)
        return found[1] if found else ""

    def known(self, word: str) -> bool:
        """Return whether a dictionary has a word in lower case."""
        return bool(self.lookup(word))


Lookup = Callable[[str], "tuple[Phones, ...]"]
"""word in lower case -> its pronunciations, empty if no dictionary has it"""
Read = Callable[["re.Match[str]", Neighbors], Words | None]
"""(match, neighbors) -> words, or None if the rule does not apply"""


@dataclass(frozen=True, slots=True)
class TokenRule:
    """A pattern and how it is read."""

    kind: str
    pattern: "re.Pattern[str]"
    read: Read


def compile_rule(kind: str, pattern: str, read: Read) -> TokenRule:
    """Return a rule; spaces of the pattern are ignored."""
    return TokenRule(kind, re.compile(pattern, re.X), read)


def word_set(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


def any_of(words: Iterable[str]) -> str:
    """Return the pattern of any of these strings, the longest first."""
    return "(?:" + "|".join(map(_escape, sorted(words, key=len, reverse=True))) + ")"


def _escape(text: str) -> str:
    return re.escape(text).replace("\\ ", "[ ]")
