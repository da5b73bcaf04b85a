"""Scientific notation, powers, formulas of chemistry and coordinates.

6.02 × 10^23 and 6.02e23   six point zero two times ten to the twenty third      10⁻³   ten to the minus third
H₂O   H two O      40°42′N   forty degrees forty two minutes north
"""

import re
import unicodedata

from qkv.pronunciation.normalization.rule import Neighbors, compile_rule
from qkv.pronunciation.normalization.values.amounts import AMOUNT, SIGN, amount, sign
from qkv.pronunciation.normalization.values.numbers import Words, cardinal, ordinal, without_separators

SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹"
_POWERS = {"2": ("squared",), "3": ("cubed",)}
_MINUS = re.compile(r"[-−–⁻]")
DIRECTIONS = {"N": "north", "S": "south", "E": "east", "W": "west"}
_RAISED = rf"[⁻⁺]?[{SUPERSCRIPTS}]{{1,3}}"
_CARET = r"(?:\^|\*\*)[{(]?(?P<caret>[-−–+]?\d{1,3})[})]?"


def power(text: str) -> Words:
    """Return an exponent as words: squared, cubed, to the fourth, to the minus third."""
    digits = re.sub(r"\D", "", unicodedata.normalize("NFKC", text))
    minus = ("minus",) if _MINUS.match(text) else ()
    return (_POWERS.get(digits) if not minus else None) or ("to", "the", *minus, *ordinal(digits))


def _ten_to_the(text: str) -> Words:
    """Return a power of ten: ten to the second, not ten squared."""
    words = power(text)
    return ("ten", *(words if len(words) > 1 else ("to", "the", *ordinal("2" if words == ("squared",) else "3"))))


def _read_notation(match: "re.Match[str]", near: Neighbors) -> Words:
    exponent = match["letter"] or match["caret"] or match["raised"]
    return (*sign(match["sign"]), *amount(match["number"]), "times", *_ten_to_the(exponent))


def _read_ten(match: "re.Match[str]", near: Neighbors) -> Words:
    return (*sign(match["sign"]), *_ten_to_the(match["caret"] or match["raised"]))


def _read_formula(match: "re.Match[str]", near: Neighbors) -> Words:
    pieces = re.findall(r"[A-Z]|[a-z]|[₀-₉]+", match[0])
    return tuple(word for piece in pieces for word in (_count(piece) if piece[0] in "₀₁₂₃₄₅₆₇₈₉" else (piece.upper(),)))


def _count(subscripts: str) -> Words:
    return cardinal(unicodedata.normalize("NFKC", subscripts))


def _read_coordinate(match: "re.Match[str]", near: Neighbors) -> Words:
    words: Words = (*sign(match["sign"]), *_counted(match["degrees"], "degree"))
    for name in ("minute", "second"):
        if match[name]:
            words = (*words, *_counted(match[name], name))
    return (*words, *((DIRECTIONS[match["way"]],) if match["way"] else ()))


def _counted(number: str, name: str) -> Words:
    joined = without_separators(number)
    plain = joined if "." in joined else joined.lstrip("0") or "0"
    return (*amount(plain), name if plain == "1" else name + "s")


_DEGREES = rf"{SIGN}(?P<degrees>{AMOUNT})[ ]?[°º][ ]?"
_MINUTES = r"(?P<minute>\d{1,2}(?:\.\d++)?)['′’][ ]?(?:(?P<second>\d{1,2}(?:\.\d++)?)(?:[\"″”]|['′’]{2})[ ]?)?"
_WAY = r"(?P<way>[NSEW])(?![\w]|\.\w)"
NUMBERS = (
    compile_rule(
        "scientific",
        rf"{SIGN}(?P<number>{AMOUNT})(?:[ ]?[×x*·⋅][ ]?10(?:{_CARET}|(?P<raised>{_RAISED}))"
        r"|(?:e|(?<=\.\d)E|(?<=\.\d\d)E|E(?=[-−+]))(?P<letter>[-−+]?\d{1,3}))(?![\w^])",
        _read_notation,
    ),
    compile_rule("scientific", rf"{SIGN}10(?:{_CARET}|(?P<raised>{_RAISED}))(?![\w^])", _read_ten),
    compile_rule("measure", rf"{_DEGREES}{_MINUTES}(?:{_WAY})?", _read_coordinate),
    compile_rule("measure", rf"{_DEGREES}(?P<minute>(?!))?(?P<second>(?!))?{_WAY}", _read_coordinate),
)
"""What begins with a digit."""
FORMULA = compile_rule("code", r"(?=[A-Za-z]{1,8}[₀-₉])(?:[A-Z][a-z]?|[₀-₉]{1,3}){2,12}(?![\w])", _read_formula)
"""Elements and their numbers below the line."""
