"""Quantities: a number and a unit, feet and inches, multiples.

5 km   five kilometers     3 m/s   three meters per second     5'10"   five foot ten     2 m²   two square meters
"""

import re
from functools import cache
from pathlib import Path

from qkv.pronunciation.normalization.amounts import AMOUNT, DASH, SIGN, amount, is_one, sign
from qkv.pronunciation.normalization.numbers import Words, cardinal
from qkv.pronunciation.normalization.rule import Neighbors, Rule, any_of, compile_rule

_POWERS = {"²": "square", "³": "cubic", "^2": "square", "^3": "cubic", "2": "square", "3": "cubic"}
_EQUATION = re.compile(r"[ ]?=")
_ENDS_PHRASE = re.compile(r"[ ]*(?:$|[,;:!?)\]]|\.(?:\s|$)|(?:x|by|wide|long|tall|deep|high|thick)\b)")


@cache
def units() -> dict[str, tuple[str, str]]:
    """Return the names of every unit: its symbol, then one and many."""
    lines = Path(__file__).with_name("units.tsv").read_text(encoding="utf-8").splitlines()
    rows = (line.split("\t") for line in lines if not line.startswith("#"))
    return {symbol: (one, many) for symbol, one, many in rows}


def _read_quantity(match: "re.Match[str]", near: Neighbors) -> Words | None:
    unit, number = match["unit"], match["to"] or match["number"]
    end = match.end()
    if unit == "in" and match["space"] and not _ENDS_PHRASE.match(near.text, end):
        return None
    singular = (is_one(number) and not match["to"]) or match["space"] == "-" or near.before().lower() in ("a", "an")
    name = units()[unit][0 if singular else 1]
    power, per = _POWERS.get(match["power"] or "", ""), match["per"]
    to = ("to", *amount(match["to"])) if match["to"] else ()
    rate = ("per", *(units()[per][0].split() if per in units() else (per,))) if per else ()
    return (*sign(match["sign"]), *amount(match["number"]), *to, *power.split(), *name.split(), *rate)


def _read_height(match: "re.Match[str]", near: Neighbors) -> Words:
    inches = cardinal(match["inches"]) if match["inches"] else ()
    if not inches:
        return (*cardinal(match["feet"]), "foot" if match["feet"] == "1" else "feet")
    return (*cardinal(match["feet"]), "foot", *inches)


def _read_inches(match: "re.Match[str]", near: Neighbors) -> Words | None:
    if near.text.count('"', max(0, match.start() - 500), match.start()) % 2:
        return None  # it closes a quotation
    return (
        *amount(match["number"]),
        "inch" if is_one(match["number"]) or near.before().lower() in ("a", "an") else "inches",
    )


def _read_sides(match: "re.Match[str]", near: Neighbors) -> Words:
    parts = re.split(r"[ ]?[x×][ ]?", match[0])
    sign_word = "times" if _EQUATION.match(near.text, match.end()) else "by"
    return tuple(word for index, part in enumerate(parts) for word in (*((sign_word,) if index else ()), *amount(part)))


def _read_times(match: "re.Match[str]", near: Neighbors) -> Words:
    return (*amount(match["number"]), "times" if match["sign"] == "×" else "X")


def make_rules() -> tuple[Rule, ...]:
    """Return the rules; they read the table of units."""
    names = any_of(units())
    return (
        compile_rule(
            "measure",
            r"(?P<feet>\d{1,2})['′’](?:[ ]?(?P<inches>\d{1,2})(?:[\"″”]|''|’’|(?![\w]))|(?![\w]))",
            _read_height,
        ),
        compile_rule("measure", rf"(?P<number>{AMOUNT})[\"″](?![\w])", _read_inches),
        compile_rule("measure", rf"{AMOUNT}(?:[ ]?[x×][ ]?{AMOUNT})+(?![\w])", _read_sides),
        compile_rule("measure", rf"(?P<number>{AMOUNT})(?P<sign>[x×X])(?![\w])", _read_times),
        compile_rule(
            "measure",
            rf"{SIGN}(?P<number>{AMOUNT})(?:(?:{DASH}|[ ]to[ ])(?P<to>{AMOUNT}))?"
            rf"(?P<space>[ \u00a0-]?)(?P<unit>{names})"
            rf"(?P<power>[²³]|\^?[23](?![\w]))?(?:/(?P<per>{names}|[a-z]{{2,12}}))?(?![\w°²³/$])",
            _read_quantity,
        ),
    )
