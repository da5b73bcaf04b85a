"""The scan of a text: every character is part of one token, and every token is read by the first rule that fits.

A plain word is found by one pattern and costs a microsecond; rules are tried only where a digit, a sign, a capital or a
word that may begin a date or an abbreviation stands. Every pattern is bounded or possessive, so time is linear.
"""

import re
import unicodedata
from collections.abc import Iterator

from qkv.pronunciation.normalization import order
from qkv.pronunciation.normalization.names import abbreviations, roman
from qkv.pronunciation.normalization.rule import Lookup, Neighbors, SpokenToken
from qkv.pronunciation.normalization.values import calendar

_STEP = re.compile(
    r"(?P<space>\s++)"
    r"|(?P<word>[A-Za-z]++(?:['’][A-Za-z]++)*+(?=[ \n,;!?)\"”\]]|\.(?:[\s\"”)]|$)|:\s|$))"
    r"|(?P<other>.)",
    re.S,
)
# letters of any script with their combining marks, joined by one of ' _ & + or a hyphen
_WORD = re.compile(r"[^\W_⁰¹²³⁴-⁹₀-₉][\u0300-\u036f]*+(?:['’ʼ._&+‑-]?[^\W_⁰¹²³⁴-⁹₀-₉][\u0300-\u036f]*+)*+")
_PLAIN = re.compile(r"[^\W\d_][\u0300-\u036f]*+(?:['’ʼ]?[^\W\d_][\u0300-\u036f]*+)*+")
_RUN = re.compile(r"[.!?…]{2,}+|[-–—]{2,}+|_++|\*++|'{2,}+")
_LIST_RANGE = re.compile(r"(?P<first>[A-Z])[-–—](?P<second>[A-Z])(?![\w])")
MAX_WORD = 64
"""Characters of the longest word with dots or hyphens that is looked up as a whole."""

_TRIGGERS = frozenset(
    {
        *calendar.MONTH_NAMES,
        *calendar.DAY_NAMES,
        *roman.SMALL_NUMERALS,
        *(short.partition(".")[0] for short in abbreviations.abbreviations()),
    }
)
_SIGN_STARTS = re.compile(r"[-−+±~≈$£₤€¥₹₩₽₿#.('’‘@&=%×⁰¹²³⁴-⁹⁻⁺÷\[<>≤≥≠→°§¶©®™√∞π¢^|!*/–½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞⅐⅑⅒]")


def normalize(text: str, lookup: Lookup = lambda word: ()) -> Iterator[SpokenToken]:
    """Yield the tokens of a text; joined they are the text again.

    `lookup` returns the pronunciations that a dictionary has; they decide which capitals are a word.
    """
    near = Neighbors(text, lookup)
    near.line_is_capitals = _is_in_capitals(text)
    position, step = 0, _STEP.match
    while position < len(text):
        match = step(text, position)
        assert match is not None
        if match.lastgroup == "space":
            token = SpokenToken(match[0], position, "space")
        elif match.lastgroup == "word" and not _needs_rules(match[0], near):
            token = SpokenToken(match[0], position, "word", (match[0],))
        else:
            token = _read(text, position, near)
        near.add(token)
        position += len(token.text)
        yield token


def _is_in_capitals(text: str) -> bool:
    """Return whether a text has at least three words and none in small letters, such as a headline."""
    start = text[:2000]
    return start.upper() == start and len(re.findall(r"[A-Z]{2,}", start)) >= 3


def _needs_rules(word: str, near: Neighbors) -> bool:
    return (
        word in _TRIGGERS
        or (word.isupper() and len(word) > 1)
        or word[1:].lower() != word[1:]
        or (len(word) <= 3 and word[0] in "IVX" and near.before()[:1].isalpha())
        or len(word) == 1
    )


def _read(text: str, position: int, near: Neighbors) -> SpokenToken:
    first = text[position]
    if first.isdecimal() and first.isascii():
        rules = order.DIGITS
    elif first.isalpha() and first.isascii():
        rules = order.LETTERS
    elif _SIGN_STARTS.match(first):
        rules = order.SIGNS
    else:
        rules = order.OTHERS
    for rule in rules:
        match = rule.pattern.match(text, position)
        if match and match.end() > position:
            words = rule.read(match, near)
            if words is not None:
                return SpokenToken(match[0], position, rule.kind, words)
    return _read_other(text, position, near)


def _read_other(text: str, position: int, near: Neighbors) -> SpokenToken:
    """Read a word that no rule reads, or a run of punctuation or of symbols."""
    sections = _LIST_RANGE.match(text, position)
    if sections:
        return SpokenToken(sections[0], position, "range", (sections["first"], "to", sections["second"]))
    match = _WORD.match(text, position, position + MAX_WORD)
    if match is None:
        return _read_signs(text, position)
    plain = _PLAIN.match(text, position)
    is_whole = plain is None or (len(match[0]) < MAX_WORD and near.known(_plain(match[0])))
    word = match[0] if is_whole or plain is None else plain[0]  # without letters: digits of another script
    return SpokenToken(word, position, "word", (word,))


def _plain(word: str) -> str:
    return unicodedata.normalize("NFC", word).lower().replace("’", "'")


def _read_signs(text: str, position: int) -> SpokenToken:
    """Read a run of signs of one kind, up to one that a rule may read."""
    run = _RUN.match(text, position)
    if run:
        return SpokenToken(run[0], position, "punctuation")
    kind = _kind(text[position])
    end = position + 1
    while end < len(text) and _goes_on(text[end]) and _kind(text[end]) == kind:
        end += 1
    return SpokenToken(text[position:end], position, kind)


def _goes_on(sign: str) -> bool:
    return not (sign.isspace() or sign.isalnum() or _SIGN_STARTS.match(sign))


def _kind(sign: str) -> str:
    return "punctuation" if unicodedata.category(sign).startswith("P") else "symbol"
