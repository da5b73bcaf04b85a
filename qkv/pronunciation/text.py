"""Split text into words and what is between them; normalize the letters of a word."""

import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_CHUNK = re.compile(r"\s+|\S+")
# letters and digits of any script with their combining marks, joined by one of ' - . _ & +
_WORD = re.compile(r"(?:[^\W_]\.){2,}|[^\W_][\u0300-\u036f]*(?:['’._&+-]?[^\W_][\u0300-\u036f]*)*")
_PART = re.compile(r"\d(?:st|nd|rd|th)(?![^\W\d_])|\d|[^\W\d_]+(?:'[^\W\d_]+)*'?")
_APOSTROPHES = str.maketrans("’‘ʼ", "'''")
_PLAIN = {"ß": "ss", "æ": "ae", "œ": "oe", "ø": "o", "đ": "d", "ð": "d", "þ": "th", "ł": "l", "ı": "i"}
_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_ORDINALS = ("zeroth", "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth")


@dataclass(frozen=True)
class TextToken:
    """A token of a text."""

    text: str
    kind: str
    """word, space, punctuation or symbol (such as an emoji)."""


def split_text(text: str, known: Callable[[str], bool] = lambda word: False) -> Iterator[TextToken]:
    """Yield the tokens of a text; joined they are the text again.

    A chunk between spaces is one word if it is `known` as a whole ("'bout", "u.s."), unless the text has several words
    and the chunk is a known word with a full stop. Otherwise punctuation is split off, except ' - . _ & + within one.
    """
    is_single = len(text.split()) == 1
    for chunk in _CHUNK.findall(text):
        if chunk.isspace():
            yield TextToken(chunk, "space")
        elif known(normalize(chunk)) and (is_single or not (chunk.endswith(".") and known(normalize(chunk[:-1])))):
            yield TextToken(chunk, "word")
        else:
            yield from _split_chunk(chunk)


def normalize(word: str) -> str:
    """Return the word in lower case, with plain apostrophes and composed letters (NFC)."""
    return unicodedata.normalize("NFC", word).lower().translate(_APOSTROPHES)


def strip_accents(word: str) -> str:
    """Return the word without accents: cafe for café, strasse for straße."""
    letters = "".join(_PLAIN.get(letter, letter) for letter in word)
    return "".join(c for c in unicodedata.normalize("NFKD", letters) if not unicodedata.combining(c))


def split_compound(word: str) -> list[str]:
    """Return the parts of a compound word: mp and three for mp3, well and known for well-known.

    Each digit is a part; the last one of 1st, 2nd, 3rd and so on becomes first, second, third.
    """
    return [_spell(part) for part in _PART.findall(word)]


def _spell(part: str) -> str:
    if not part[0].isdigit():
        return part
    return (_DIGITS if len(part) == 1 else _ORDINALS)[unicodedata.digit(part[0])]


def _split_chunk(chunk: str) -> Iterator[TextToken]:
    offset = 0
    for match in _WORD.finditer(chunk):
        yield from _split_symbols(chunk[offset : match.start()])
        yield TextToken(match[0], "word")
        offset = match.end()
    yield from _split_symbols(chunk[offset:])


def _split_symbols(text: str) -> Iterator[TextToken]:
    """Yield runs of punctuation and runs of other symbols."""
    for match in re.finditer(r"([^\w\s]|_)+", text):
        run = ""
        for sign in match[0]:
            if run and _is_punctuation(sign) != _is_punctuation(run[-1]):
                yield TextToken(run, _kind(run))
                run = ""
            run += sign
        yield TextToken(run, _kind(run))


def _kind(run: str) -> str:
    return "punctuation" if _is_punctuation(run[0]) else "symbol"


def _is_punctuation(sign: str) -> bool:
    return unicodedata.category(sign).startswith("P")
