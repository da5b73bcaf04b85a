"""Signs that are said: & and, = equals, # hash. Other signs and all punctuation are silent."""

import re

from qkv.pronunciation.normalization.numbers import Words, ordinal
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
_OPERATORS = {"-": "minus", "–": "minus", "*": "times", "/": "divided by"}
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
    return tuple(_OPERATORS[match["sign"]].split()) if is_term else None


def _read_grade(match: "re.Match[str]", near: Neighbors) -> Words | None:
    before = near.token_before()
    is_grade = before is not None and before.text in tuple("ABCDF") and before.end == match.start()
    return ("minus",) if is_grade else None


def _read_star(match: "re.Match[str]", near: Neighbors) -> Words | None:
    return ("star",) if near.before().lower() in ("press", "dial", "hit", "the") else None


def _read_power(match: "re.Match[str]", near: Neighbors) -> Words | None:
    power = {"²": "2", "³": "3"}.get(match[0], match[0].lstrip("^"))
    before = near.token_before()
    if before is None or before.end != match.start():
        return None
    return _POWERS.get(power) or ("to", "the", *ordinal(power))


def _read_per(match: "re.Match[str]", near: Neighbors) -> Words | None:
    before = near.token_before()
    is_rate = before is not None and before.kind in ("money", "measure") and before.end == match.start()
    return ("per",) if is_rate else None


_POWERS = {"2": ("squared",), "3": ("cubed",)}
RULES = (
    compile_rule("symbol", r"[-−](?![\w])", _read_grade),
    compile_rule("symbol", r"\*(?=[\s.,])", _read_star),
    compile_rule("symbol", r"[²³]|\^\d{1,3}", _read_power),
    compile_rule("symbol", r"/(?=[A-Za-z])", _read_per),
    compile_rule("symbol", r"(?<=[ ])(?P<sign>[-–*/])(?=[ ](?:\d|[a-zA-Z]\b)[^=\n]{0,40}=)", _read_operator),
    compile_rule("symbol", r"<=|>=|!=|==|->|=>", _read_double),
    compile_rule("symbol", "[" + re.escape("".join(_NAMES)) + "]", _read_sign),
)
"""Signs, judged after every other rule."""
