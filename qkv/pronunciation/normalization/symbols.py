"""Signs that are said: & and, = equals, # hash. Other signs and all punctuation are silent."""

import re

from qkv.pronunciation.normalization.numbers import Words
from qkv.pronunciation.normalization.rule import Neighbors, compile_rule

_NAMES = {
    "&": "and",
    "@": "at",
    "#": "hash",
    "+": "plus",
    "=": "equals",
    "%": "percent",
    "×": "times",
    "÷": "divided by",
    "±": "plus or minus",
    "−": "minus",
    "<": "less than",
    ">": "greater than",
    "≤": "less than or equal to",
    "≥": "greater than or equal to",
    "≠": "not equal to",
    "≈": "approximately equal to",
    "→": "to",
    "°": "degrees",
    "§": "section",
    "¶": "paragraph",
    "©": "copyright",
    "®": "registered",
    "™": "trademark",
    "√": "square root of",
    "∞": "infinity",
    "π": "pi",
    "$": "dollar",
    "£": "pound",
    "€": "euro",
    "¥": "yen",
    "¢": "cent",
    "~": "tilde",
    "^": "caret",
    "|": "pipe",
}
_OPERATORS = {"-": "minus", "–": "minus", "*": "times", "/": "over"}
_DOUBLES = {
    "<=": "less than or equal to",
    ">=": "greater than or equal to",
    "!=": "not equal to",
    "==": "equals",
    "->": "to",
    "=>": "to",
}


def _read_sign(match: "re.Match[str]", near: Neighbors) -> Words:
    return tuple(_NAMES[match[0]].split())


def _read_double(match: "re.Match[str]", near: Neighbors) -> Words:
    return tuple(_DOUBLES[match[0]].split())


def _read_operator(match: "re.Match[str]", near: Neighbors) -> Words | None:
    """Read - * / with spaces on both sides between numbers or single letters, as in an equation."""
    before = near.token_before()
    is_term = before is not None and (before.text[0].isdigit() or (len(before.text) == 1 and before.text.isalpha()))
    return (_OPERATORS[match["sign"]],) if is_term else None


def _read_per(match: "re.Match[str]", near: Neighbors) -> Words | None:
    before = near.token_before()
    is_rate = before is not None and before.kind in ("money", "measure") and before.end == match.start()
    return ("per",) if is_rate else None


RULES = (
    compile_rule("symbol", r"/(?=[A-Za-z])", _read_per),
    compile_rule("symbol", r"(?<=[ ])(?P<sign>[-–*/])(?=[ ](?:\d|[a-zA-Z]\b)[^=\n]{0,40}=)", _read_operator),
    compile_rule("symbol", r"<=|>=|!=|==|->|=>", _read_double),
    compile_rule("symbol", "[" + re.escape("".join(_NAMES)) + "]", _read_sign),
)
"""Signs, judged after every other rule."""
