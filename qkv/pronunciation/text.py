"""Text cut into words and what stands between them; and the letters of a word made plain."""

import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_CHUNK = re.compile(r"\s+|\S+")
# letters and digits of any script, with the marks that belong to them, joined by one of ' - . _ & +
_WORD = re.compile(r"(?:[^\W_]\.){2,}|[^\W_][\u0300-\u036f]*(?:['’._&+-]?[^\W_][\u0300-\u036f]*)*")
_PART = re.compile(r"\d(?:st|nd|rd|th)(?![^\W\d_])|\d|[^\W\d_]+(?:'[^\W\d_]+)*'?")
_APOSTROPHES = str.maketrans("’‘ʼ", "'''")
_PLAIN = {"ß": "ss", "æ": "ae", "œ": "oe", "ø": "o", "đ": "d", "ð": "d", "þ": "th", "ł": "l", "ı": "i"}
_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_ORDINALS = ("zeroth", "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth")


@dataclass(frozen=True)
class Token:
    """A piece of a text."""

    text: str
    kind: str
    """word, space, punctuation or symbol (such as an emoji)."""


def tokens(text: str, known: Callable[[str], bool] = lambda word: False) -> Iterator[Token]:
    """The pieces of a text; joined they are the text again.

    What stands between spaces is one word if it is `known` as it stands ("'bout", "u.s."), unless, in a text of
    several words, it is a known word with a full stop behind; otherwise punctuation is parted from words, but for
    ' - . _ & + inside of one.
    """
    alone = len(text.split()) == 1
    for chunk in _CHUNK.findall(text):
        if chunk.isspace():
            yield Token(chunk, "space")
        elif known(simplify(chunk)) and (alone or not (chunk.endswith(".") and known(simplify(chunk[:-1])))):
            yield Token(chunk, "word")
        else:
            yield from _cut(chunk)


def simplify(word: str) -> str:
    """Lower case, typographic apostrophes as plain ones, composed letters."""
    return unicodedata.normalize("NFC", word).lower().translate(_APOSTROPHES)


def fold(word: str) -> str:
    """The word without accents: café as cafe, straße as strasse."""
    letters = "".join(_PLAIN.get(letter, letter) for letter in word)
    return "".join(c for c in unicodedata.normalize("NFKD", letters) if not unicodedata.combining(c))


def parts(word: str) -> list[str]:
    """What a word is composed of, to be said one after the other: mp3 as mp and three, well-known as well and known.

    Each digit is said by itself, the last of 1st, 2nd, 3rd and so on as first, second, third.
    """
    return [_spell(part) for part in _PART.findall(word)]


def _spell(part: str) -> str:
    if not part[0].isdigit():
        return part
    return (_DIGITS if len(part) == 1 else _ORDINALS)[unicodedata.digit(part[0])]


def _cut(chunk: str) -> Iterator[Token]:
    place = 0
    for match in _WORD.finditer(chunk):
        yield from _between(chunk[place : match.start()])
        yield Token(match[0], "word")
        place = match.end()
    yield from _between(chunk[place:])


def _between(text: str) -> Iterator[Token]:
    """Runs of punctuation and runs of other signs."""
    for match in re.finditer(r"([^\w\s]|_)+", text):
        run = ""
        for sign in match[0]:
            if run and _is_punctuation(sign) != _is_punctuation(run[-1]):
                yield Token(run, _kind(run))
                run = ""
            run += sign
        yield Token(run, _kind(run))


def _kind(run: str) -> str:
    return "punctuation" if _is_punctuation(run[0]) else "symbol"


def _is_punctuation(sign: str) -> bool:
    return unicodedata.category(sign).startswith("P")
