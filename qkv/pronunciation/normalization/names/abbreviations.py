"""Abbreviations: Dr. Smith doctor, Elm Dr. drive, e.g. for example, No. 5 number five; see abbreviations.tsv."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

from qkv.pronunciation.normalization.rule import Neighbors, SpokenToken, TokenRule, any_of, compile_rule, word_set
from qkv.pronunciation.normalization.values.numbers import Words

_SMALL_WORDS = word_set(
    "a an and are as at both by for from had has her his in into is like my near of on or our over said saw says "
    "see sees since so than that the their then to told under via visit was we were when where while why with "
    "your you he she i they but if not how who met asked call called dear ask after before until old new"
)
_BEFORE_SAINT = word_set("mount mt port fort lake bay")
_TITLES = word_set("professor reverend doctor mister missus miz honorable sir general father lieutenant major senator")
_NAME = re.compile(r"[ ]?[A-Z]")
_DIGIT = re.compile(r"[ ]?[-−+(]?\d")
_YEAR = re.compile(r"[ ]?(?:c\.[ ]?)?\d{3,4}(?![\w]|[.,]\d)")
_GOES_ON = re.compile(r"[ ]?[^\sA-Z]|[ ]?[A-Z][\w’']*[ ]+\d")
_SAINT_NAME = re.compile(r"[ ]?[A-Z][a-z]")


@cache
def abbreviations() -> dict[str, list[tuple[str, str]]]:
    """Return every abbreviation without its last dot: what it may stand for, and when."""
    lines = Path(__file__).with_name("abbreviations.tsv").read_text(encoding="utf-8").splitlines()
    rows = (line.split("\t") for line in lines if not line.startswith("#"))
    table: dict[str, list[tuple[str, str]]] = {}
    for short, words, when in rows:
        table.setdefault(short, []).append((words, when))
    return table


def _has_dot(match: "re.Match[str]", near: Neighbors) -> bool:
    return bool(match["dot"])


def _before(pattern: "re.Pattern[str]") -> Callable[["re.Match[str]", Neighbors], bool]:
    return lambda match, near: bool(pattern.match(near.text, match.end()))


def _in_case(match: "re.Match[str]", near: Neighbors) -> bool:
    """Return whether this is a party of a case: Roe v. Wade."""
    return bool(match["dot"]) and near.before()[:1].isupper()


def _with_dot_in_middle(match: "re.Match[str]", near: Neighbors) -> bool:
    return bool(match["dot"]) and bool(_GOES_ON.match(near.text, match.end()))


def _before_dotted_number(match: "re.Match[str]", near: Neighbors) -> bool:
    return bool(match["dot"]) and bool(_DIGIT.match(near.text, match.end()))


def _after_street(match: "re.Match[str]", near: Neighbors) -> bool:
    return bool(match["dot"]) or _follows_place(near)


def _before_year(match: "re.Match[str]", near: Neighbors) -> bool:
    return bool(match["dot"]) and bool(_YEAR.match(near.text, match.end()))


_CONDITIONS: dict[str, Callable[["re.Match[str]", Neighbors], bool]] = {
    "any": lambda match, near: True,
    "always": lambda match, near: True,
    "place": lambda match, near: True,
    "dot": _has_dot,
    "dot-middle": _with_dot_in_middle,
    "middle": _with_dot_in_middle,
    "name": lambda match, near: bool(match["dot"]) and bool(_NAME.match(near.text, match.end())),
    "number": _before_dotted_number,
    "year": _before_year,
    "street": _after_street,
    "vs": _in_case,
}


def _is_name(text: str) -> bool:
    return text[:1].isupper() and text.lower() not in _SMALL_WORDS


def _is_title(token: SpokenToken) -> bool:
    """Return whether a token is an abbreviation before a name: the Prof. of Prof. Dr. Stone."""
    return token.kind == "abbreviation" and token.words[-1] in _TITLES


def _follows_place(near: Neighbors) -> bool:
    """Return whether the word before is the name of a street: Elm St., 5th St., but not In St. Louis."""
    before = near.token_before()
    if before is None or before.kind == "punctuation" or _is_title(before):
        return False
    return before.kind == "ordinal" or _is_name(before.text) or before.text.lower() in ("street", "avenue")


def _read(match: "re.Match[str]", near: Neighbors) -> Words | None:
    choices = abbreviations()[match["short"]]
    words, when = next((one for one in choices if _CONDITIONS[one[1]](match, near)), ("", ""))
    if not words:
        return None
    if when == "place":
        words = _choose_place(words, match, near)
    *first, last = words.split()
    return (*first, last + "'s" if match["owner"] else last)


def _choose_place(words: str, match: "re.Match[str]", near: Neighbors) -> str:
    """Return the title or the street that an abbreviation stands for."""
    person, street = words.split(" | ")
    named = bool(_SAINT_NAME.match(near.text, match.end()))
    is_person = named and (near.before().lower() in _BEFORE_SAINT or not _follows_place(near))
    return person if is_person else street


@cache
def make_rule() -> TokenRule:
    """Return the rule of abbreviations; it reads their table."""
    return compile_rule(
        "abbreviation",
        rf"(?P<short>{any_of(abbreviations())})"
        r"(?:(?P<dot>\.)(?P<owner>['’]s\b|(?<=[A-Z]\.)s\b)?|(?![\w]|['’-][\w]))(?![\w])",
        _read,
    )
