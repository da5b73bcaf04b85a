"""Quantities: a number and a unit, feet and inches, multiples.

5 km   five kilometers     3 m/s   three meters per second     5'10"   five foot ten     2 m²   two square meters
"""

import re
from functools import cache
from pathlib import Path

from qkv.pronunciation.normalization.names.addresses import STREETS
from qkv.pronunciation.normalization.rule import Neighbors, TokenRule, any_of, compile_rule
from qkv.pronunciation.normalization.values.amounts import AMOUNT, DASH, SIGN, amount, describes, is_one, sign
from qkv.pronunciation.normalization.values.numbers import Words, cardinal
from qkv.pronunciation.normalization.values.science import DIRECTIONS

_POWERS = {"²": "square", "³": "cubic", "^2": "square", "^3": "cubic", "2": "square", "3": "cubic"}
_STREET = re.compile(rf"\.?[ ]\d{{1,3}}(?:st|nd|rd|th)\b|\.[ ][A-Z]\w{{1,20}}[ ](?:{STREETS})\b")
_OPENS = re.compile(r'(?<![\w.,!?…\x27)"])"(?=[\w\x27$(])')
_CLOSES = re.compile(r'(?<![\d\s])"')
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
    if unit in DIRECTIONS and match["space"] and _STREET.match(near.text, end):
        return None
    is_single = is_one(number) and not match["to"] and not match["magnitude"]
    singular = is_single or match["space"] == "-" or _stands_before_noun(match, near)
    name = units()[unit][0 if singular else 1]
    if unit == "m" and _follows_hours(near):
        name = "minute" if singular else "minutes"
    power = _POWERS.get(match["power"] or "", "")
    to = ("to", *amount(match["to"])) if match["to"] else ()
    magnitude = (match["magnitude"],) if match["magnitude"] else ()
    rate = per_unit(match["per"], match["per_power"]) if match["per"] else ()
    return (*sign(match["sign"]), *amount(match["number"]), *to, *magnitude, *power.split(), *name.split(), *rate)


def per_unit(unit: str, raised: str | None = None) -> Words:
    """Return what follows a slash: per second, per square meter, per second squared."""
    name = units()[unit][0] if unit in units() else unit
    power = _POWERS.get(raised or "", "")
    if name.endswith("second") and power:
        return ("per", *name.split(), "squared" if power == "square" else "cubed")
    return ("per", *power.split(), *name.split())


def _follows_hours(near: Neighbors) -> bool:
    before = near.token_before()
    return before is not None and before.kind == "measure" and before.words[-1] in ("hour", "hours")


def _stands_before_noun(match: "re.Match[str]", near: Neighbors) -> bool:
    """Return whether the measure describes the next noun: the 5 km run, a 9 mm pen."""
    return near.before().lower() in ("a", "an") or describes(near, match.end())


def _read_height(match: "re.Match[str]", near: Neighbors) -> Words:
    inches = cardinal(match["inches"]) if match["inches"] else ()
    if not inches:
        return (*cardinal(match["feet"]), "foot" if match["feet"] == "1" else "feet")
    return (*cardinal(match["feet"]), "foot", *inches)


def _read_inches(match: "re.Match[str]", near: Neighbors) -> Words | None:
    if match[0][-1] == '"' and _is_in_quotation(near.text, match.start()):
        return None
    return (
        *amount(match["number"]),
        "inch" if is_one(match["number"]) or near.before().lower() in ("a", "an") else "inches",
    )


def _is_in_quotation(text: str, place: int) -> bool:
    """Return whether a quotation mark before a place opens a quotation that no other mark closes."""
    start = max(0, place - 500)
    opened = max((found.start() for found in _OPENS.finditer(text, start, place)), default=-1)
    return opened >= 0 and not _CLOSES.search(text, opened + 1, place)


def _read_sides(match: "re.Match[str]", near: Neighbors) -> Words:
    sign_word = "times" if _EQUATION.match(near.text, match.end()) else "by"
    words: list[str] = []
    for part in re.split(r"[ ]?[x×][ ]?", match[0]):
        number, unit = _split_side(part)
        words += [*((sign_word,) if words else ()), *amount(number)]
        if unit:
            words += units()[unit][0 if is_one(number) else 1].split()
    return tuple(words)


def _split_side(part: str) -> tuple[str, str]:
    """Return the number and the unit of a side; an inch mark is the unit in."""
    found = re.match(AMOUNT, part)
    assert found is not None
    unit = part[found.end() :].strip()
    return found[0], {'"': "in", "″": "in", "'": "ft", "′": "ft"}.get(unit, unit)


def _read_times(match: "re.Match[str]", near: Neighbors) -> Words:
    return (*amount(match["number"]), "times" if match["sign"] == "×" else "X")


def make_rules() -> tuple[TokenRule, ...]:
    """Return the rules; they read the table of units."""
    names = any_of(units())
    side = rf"[\"″'′]|[ ]?{names}(?![\w°²³/$])"
    return (
        compile_rule(
            "measure",
            r"(?P<feet>\d{1,2})['′’](?:[ ]?(?P<inches>\d{1,2})(?:[\"″”]|''|’’|(?![\w]))|(?![\w]))",
            _read_height,
        ),
        compile_rule(
            "measure",
            rf"(?=[\d.,]{{1,20}}[^x×\n]{{0,6}}[x×]){AMOUNT}(?:{side})?(?:[ ]?[x×][ ]?{AMOUNT}(?:{side})?)+(?![\w])",
            _read_sides,
        ),
        compile_rule("measure", rf"(?P<number>{AMOUNT})[\"″](?![\w])", _read_inches),
        compile_rule("measure", rf"(?P<number>{AMOUNT})(?P<sign>[x×X])(?![\w])", _read_times),
        compile_rule(
            "measure",
            rf"{SIGN}(?P<number>{AMOUNT})(?:(?:{DASH}|[ ]to[ ])(?P<to>{AMOUNT}))?"
            rf"(?:[ ](?P<magnitude>hundred|thousand|million|billion|trillion)(?=[ ]))?"
            rf"(?P<space>[ \u00a0-]?)(?P<unit>{names})"
            rf"(?P<power>[²³]|\^?[23](?![\w]))?"
            rf"(?:/(?P<per>{names}|[a-z]{{2,12}})(?P<per_power>[²³]|\^?[23](?![\w]))?)?(?![\w°²³/$])",
            _read_quantity,
        ),
    )
