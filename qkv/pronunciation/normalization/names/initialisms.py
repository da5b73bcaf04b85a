"""Words of capital letters: FBI letter by letter, NASA a word, U.S. letters, CDs letters and an s.

Read as a word is what the table has as one, what a dictionary has with four letters or more (unless its phones are the
names of the letters, as those of fbi), and what no dictionary has but can be pronounced, with five letters or more.
"""

import re
from functools import cache
from pathlib import Path

from qkv.pronunciation.normalization.names.letters import is_spelled
from qkv.pronunciation.normalization.rule import Neighbors, compile_rule
from qkv.pronunciation.normalization.values.numbers import Words

_SYLLABLES = re.compile(
    r"[^AEIOUY]{0,3}(?:[AEIOUY]{1,2}[^AEIOUY]{1,2})+[AEIOUY]?|[^AEIOUY]?[AEIOUY](?:[^AEIOUY]{1,2}[AEIOUY])+"
)


@cache
def _tables() -> tuple[frozenset[str], frozenset[str], dict[str, Words]]:
    lines = Path(__file__).with_name("initialisms.tsv").read_text(encoding="utf-8").splitlines()
    rows = dict(line.split("\t") for line in lines if not line.startswith("#"))
    said = dict(item.split("=") for item in rows["said"].split())
    words = {capitals: tuple(text.split("-")) for capitals, text in said.items()}
    return frozenset(rows["letters"].split()), frozenset(rows["words"].split()), words


def is_word(capitals: str, near: Neighbors) -> bool:
    """Return whether capitals are read as a word."""
    letters, words, _ = _tables()
    known = near.known(capitals.lower())
    if capitals in words:
        return True
    if capitals in letters or (known and any(is_spelled(capitals, one) for one in near.lookup(capitals.lower()))):
        return False
    if known:
        return len(capitals) > 3
    return len(capitals) >= 5 and bool(_SYLLABLES.fullmatch(capitals))


def _read_capitals(match: "re.Match[str]", near: Neighbors) -> Words | None:
    base, ending = match["base"], match["ending"] or ""
    said = _tables()[2].get(base)
    if said:
        return (*said[:-1], said[-1] + "'s") if ending else said
    if near.line_is_capitals or is_word(base, near):
        return None
    spelled = tuple(base)
    if not ending:
        return spelled
    return (*spelled[:-1], spelled[-1] + "'s")


def _read_dotted(match: "re.Match[str]", near: Neighbors) -> Words:
    letters = tuple(letter.upper() for letter in match["letters"] if letter.isalpha())
    if match["owner"]:
        return (*letters[:-1], letters[-1] + "'s")
    return letters


def _read_ampersand(match: "re.Match[str]", near: Neighbors) -> Words:
    words: list[str] = []
    for index, part in enumerate(match["parts"].split("&")):
        words += [*(["and"] if index else []), *part]
    return (*words[:-1], words[-1] + "'s") if match["owner"] else tuple(words)


def _read_initial(match: "re.Match[str]", near: Neighbors) -> Words | None:
    """Read an initial of a name: J. Smith."""
    if match["letter"] in "AI" and not near.before()[:1].isupper():
        return None
    return (match["letter"],)


DOTTED = compile_rule(
    "initialism", r"(?P<letters>(?:[A-Za-z]\.){2,8}(?:[A-Z](?![\w.]))?)(?P<owner>['’]s)?(?![\w])", _read_dotted
)
"""U.S., a.m., Ph.D. is an abbreviation."""
INITIAL = compile_rule("initialism", r"(?P<letter>[A-Z])\.(?=[ ]?[A-Z])", _read_initial)
"""An initial and its dot."""
CAPITALS = compile_rule("initialism", r"(?P<base>[A-Z]{2,20})(?P<ending>['’]?s)?(?![\w]|['’][\w])", _read_capitals)
"""Two capital letters or more, with a plural or a possessive ending."""
AMPERSAND = compile_rule(
    "initialism", r"(?P<parts>[A-Z]{1,3}(?:&[A-Z]{1,3}){1,3})(?P<owner>['’]?s)?(?![\w])", _read_ampersand
)
"""AT&T, R&D."""
