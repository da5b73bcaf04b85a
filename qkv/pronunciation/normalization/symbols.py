"""Signs that are said: & and, = equals, # hash. Other signs and all punctuation are silent."""

import re
import unicodedata

from qkv.pronunciation.normalization.rule import Neighbors, any_of, compile_rule
from qkv.pronunciation.normalization.values.numbers import Words, cardinal
from qkv.pronunciation.normalization.values.quantities import per_unit, units
from qkv.pronunciation.normalization.values.science import SUPERSCRIPTS, power

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
_GREEK_TEXT = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma sigma tau upsilon "
    "phi chi psi omega"
)
_GREEK = dict(zip("αβγδεζηθικλμνξοπρςστυφχψω", _GREEK_TEXT.split(), strict=True))
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


def _read_greek(match: "re.Match[str]", near: Neighbors) -> Words | None:
    name = _GREEK.get(match[0].lower())
    return (name,) if name else None


def _read_charge(match: "re.Match[str]", near: Neighbors) -> Words:
    count = unicodedata.normalize("NFKC", match["count"])
    return (*cardinal(count or "1")[: len(count)], "plus" if match["charge"] == "⁺" else "minus")


def _read_double(match: "re.Match[str]", near: Neighbors) -> Words:
    return tuple(_DOUBLES[match[0]].split())


def _read_operator(match: "re.Match[str]", near: Neighbors) -> Words | None:
    """Read - * / with spaces on both sides between numbers or single letters, as in an equation."""
    before = near.token_before()
    is_term = before is not None and (before.text[0].isdecimal() or (len(before.text) == 1 and before.text.isalpha()))
    return tuple(_OPERATORS[match["sign"]].split()) if is_term else None


def _read_grade(match: "re.Match[str]", near: Neighbors) -> Words | None:
    before = near.token_before()
    is_grade = before is not None and before.text in tuple("ABCDF") and before.end == match.start()
    return ("minus",) if is_grade else None


def _read_star(match: "re.Match[str]", near: Neighbors) -> Words | None:
    return ("star",) if near.before().lower() in ("press", "dial", "hit", "the", "or", "and") else None


def _read_power(match: "re.Match[str]", near: Neighbors) -> Words | None:
    before = near.token_before()
    return None if before is None or before.end != match.start() else power(match[0])


def _read_per(match: "re.Match[str]", near: Neighbors) -> Words | None:
    before = near.token_before()
    if before is None or before.end != match.start():
        return None
    is_counted = before.kind == "word" and before.text.endswith("s") and near.before(2)[:1].isdecimal()
    if before.kind not in ("money", "measure") and not (is_counted and match["unit"]):
        return None
    return per_unit(match["unit"]) if match["unit"] else ("per",)


GREEK = compile_rule("symbol", r"(?<![\u0370-\u03ff])[\u0391-\u03c9](?![\u0370-\u03ff])", _read_greek)
"""A Greek letter that is not part of a Greek word."""
RULES = (
    compile_rule("symbol", rf"(?P<count>[{SUPERSCRIPTS}]{{0,1}})(?P<charge>[⁺⁻])(?![{SUPERSCRIPTS}])", _read_charge),
    compile_rule("symbol", r"[-−](?![\w])", _read_grade),
    compile_rule("symbol", r"\*(?=[\s.,\d])", _read_star),
    compile_rule("symbol", rf"[⁻⁺]?[{SUPERSCRIPTS}]{{1,3}}|\^[-−]?\d{{1,3}}", _read_power),
    compile_rule("symbol", rf"/(?:(?P<unit>{any_of(units())})(?![\w°²³/$])|(?=[A-Za-z]))", _read_per),
    compile_rule("symbol", r"(?<=[ ])(?P<sign>[-–*/])(?=[ ](?:\d|[a-zA-Z]\b)[^=\n]{0,40}=)", _read_operator),
    compile_rule("symbol", r"<=|>=|!=|==|->|=>", _read_double),
    compile_rule("symbol", "[" + re.escape("".join(_NAMES)) + "]", _read_sign),
)
"""Signs, judged after every other rule."""
