"""Fractions, ranges and scores: 3/4 three quarters, 2 1/2 two and a half, 10-20 ten to twenty, 3-0 three to zero."""

import re

from qkv.pronunciation.normalization.rule import Neighbors, any_of, compile_rule, word_set
from qkv.pronunciation.normalization.values.amounts import AMOUNT, DASH, SIGN, WHOLE, amount, sign
from qkv.pronunciation.normalization.values.calendar import MONTHS
from qkv.pronunciation.normalization.values.numbers import Words, as_ordinal, cardinal, ordinal, plural, year
from qkv.pronunciation.normalization.values.quantities import units

_VULGAR = {"½": "1/2", "⅓": "1/3", "⅔": "2/3", "¼": "1/4", "¾": "3/4", "⅕": "1/5", "⅖": "2/5", "⅗": "3/5", "⅘": "4/5"}
_VULGAR |= {"⅙": "1/6", "⅚": "5/6", "⅛": "1/8", "⅜": "3/8", "⅝": "5/8", "⅞": "7/8", "⅐": "1/7", "⅑": "1/9", "⅒": "1/10"}
_SPOKEN_AS_THEY_ARE = {"24/7": ("twenty", "four", "seven"), "9/11": ("nine", "eleven"), "50/50": ("fifty", "fifty")}
_SPOKEN_AS_THEY_ARE |= {"20/20": ("twenty", "twenty")}


_LABELS = word_set("table figure fig chapter section exhibit flight title plate appendix")
_DATED = word_set("on by until till since due dated before after from")
_EQUATION = re.compile(r"[ ]?=")


def fraction(above: str, below: str) -> Words:
    """Return a fraction: one half, three quarters, five over zero."""
    if int(below) in (0, 1) or len(below) > 4:
        return (*cardinal(above), "over", *cardinal(below))
    one = int(above) == 1
    if int(below) == 2:
        return (*cardinal(above), "half" if one else "halves")
    name = ("quarter",) if int(below) == 4 else as_ordinal(cardinal(str(int(below))))
    return (*cardinal(above), *(name if one else plural(name)))


def _mixed(whole: str | None, above: str, below: str) -> Words:
    if not whole:
        return fraction(above, below)
    part = fraction(above, below)
    return (*cardinal(whole), "and", *(("a", *part[1:]) if part[0] == "one" else part))


def _read_fraction(match: "re.Match[str]", near: Neighbors) -> Words | None:
    if match["sign"] is None and match[0] in _SPOKEN_AS_THEY_ARE:
        return _SPOKEN_AS_THEY_ARE[match[0]]
    above, below = match["above"], match["below"]
    if not match["whole"] and _is_date(match, near):
        return (MONTHS[int(above) - 1], *ordinal(below))
    if not match["whole"] and near.before().lower() in _DATED and int(above) in range(1, 13) and 12 < int(below) < 32:
        return (MONTHS[int(above) - 1], *ordinal(below))
    if near.after(match.end()) == "time":  # of music
        return (*cardinal(above), *cardinal(below))
    if len(above) > 3 or above[0] == "0" != above or below[0] == "0" != below:
        return None
    return (*sign(match["sign"]), *_mixed(match["whole"], above, below))


def _is_date(match: "re.Match[str]", near: Neighbors) -> bool:
    """Return whether 4/7 after on is a date: not before a noun."""
    above, below = int(match["above"]), int(match["below"])
    following = near.after(match.end()) if near.text[match.end() : match.end() + 1] == " " else ""
    is_alone = following in ("", "and", "at", "for", "from", "he", "I", "in", "she", "the", "they", "to", "we")
    return near.before().lower() == "on" and 0 < above < 13 and 0 < below < 32 and is_alone and below != 2


def _read_part(match: "re.Match[str]", near: Neighbors) -> Words | None:
    """Read a fraction of a unit: 1/2 lb one half pound, 2 1/2 lbs two and a half pounds."""
    above, below = (match["above"], match["below"]) if match["above"] else _VULGAR[match["sign"]].split("/")
    if int(below) == 0 or len(above) > 3:
        return None
    one, many = units()["in" if match["unit"] in '"″' else match["unit"]]
    return (*_mixed(match["whole"], above, below), *(many if match["whole"] else one).split())


def _read_vulgar(match: "re.Match[str]", near: Neighbors) -> Words:
    above, _, below = _VULGAR[match["sign"]].partition("/")
    return _mixed(match["whole"], above, below)


def _read_range(match: "re.Match[str]", near: Neighbors) -> Words | None:
    first, second = match["first"], match["second"]
    if match["sign"] is None and _is_label(first, second, near):
        return (*cardinal(first), *cardinal(second))
    if _EQUATION.match(near.text, match.end()):
        return (*sign(match["sign"]), *amount(first), "minus", *amount(second))
    words = year if _are_years(first, second) else amount
    return (*sign(match["sign"]), *words(first), "to", *words(second))


def _is_label(first: str, second: str, near: Neighbors) -> bool:
    """Return whether two numbers are one label, Table 2-1: the second is not the larger one."""
    return near.before().lower() in _LABELS and first.isdecimal() and second.isdecimal() and int(first) >= int(second)


def _are_years(first: str, second: str) -> bool:
    return (
        first.isdecimal()
        and second.isdecimal()
        and len(first) == len(second) == 4
        and "1000" <= first <= second <= "2100"
    )


def _read_ordinal_range(match: "re.Match[str]", near: Neighbors) -> Words:
    return (*ordinal(match["first"]), "to", *ordinal(match["second"]))


def _read_ordinal(match: "re.Match[str]", near: Neighbors) -> Words:
    words = ordinal(match["number"].replace(",", ""))
    return plural(words) if match["many"] else words


def _read_verse(match: "re.Match[str]", near: Neighbors) -> Words | None:
    """Read chapter and verses of a book of the Bible: Genesis 1:1-3."""
    if near.before().lower() not in _BOOKS:
        return None
    to = ("to", *cardinal(match["to"])) if match["to"] else ()
    return (*cardinal(match["chapter"]), *cardinal(match["verse"]), *to)


def _read_ratio(match: "re.Match[str]", near: Neighbors) -> Words:
    return (*cardinal(match["first"]), "to", *cardinal(match["second"]))


_BOOKS = word_set(
    "genesis exodus leviticus numbers deuteronomy joshua judges ruth samuel kings chronicles ezra nehemiah esther job "
    "psalm psalms proverbs ecclesiastes isaiah jeremiah lamentations ezekiel daniel hosea joel amos obadiah jonah "
    "micah nahum habakkuk zephaniah haggai zechariah malachi matthew mark luke john acts romans corinthians "
    "galatians ephesians philippians colossians thessalonians timothy titus philemon hebrews james peter jude "
    "revelation"
)
_ENDING = r"(?:st|nd|rd|th|ST|ND|RD|TH)"
_OF_UNIT = rf"[ -]?(?P<unit>(?<=\d)[\"″]|{any_of(units())})(?![\w°²³/])"
RULES = (
    compile_rule(
        "measure",
        rf"(?:(?P<whole>\d{{1,4}})(?:\+(?=\d{{1,3}}⁄)|[ -]?(?=\D|\d+/)))?"
        rf"(?:(?P<above>\d{{1,3}})[/⁄](?P<below>\d{{1,3}})|(?P<sign>[{''.join(_VULGAR)}])){_OF_UNIT}",
        _read_part,
    ),
    compile_rule(
        "fraction",
        rf"{SIGN}(?:(?P<whole>\d{{1,4}})(?:[ ]|-|[ ]and[ ]|\+(?=\d{{1,4}}⁄)))?"
        r"(?P<above>\d{1,4})[/⁄](?P<below>\d{1,4})(?![\w]|[/.,]\d)",
        _read_fraction,
    ),
    compile_rule("fraction", rf"(?P<whole>\d{{1,6}})?[ ]?(?P<sign>[{''.join(_VULGAR)}])", _read_vulgar),
    compile_rule(
        "ordinal", rf"(?P<first>\d{{1,6}}){_ENDING}?{DASH}(?P<second>\d{{1,6}}){_ENDING}\b", _read_ordinal_range
    ),
    compile_rule("ordinal", rf"(?P<number>{WHOLE}){_ENDING}(?P<many>s)?\b", _read_ordinal),
    compile_rule(
        "range",
        rf"{SIGN}(?P<first>{AMOUNT})(?:[–—]|[ ][–—−-][ ]|[-‑])(?P<second>{AMOUNT})(?![\w]|[-–/:]\d)",
        _read_range,
    ),
    compile_rule("ratio", r"(?P<first>\d{1,4}):(?P<second>\d{1,4})(?![\w:])", _read_ratio),
)
"""Fractions, ordinals, ranges, ratios."""
PART, FRACTION, VULGAR, ORDINALS, ORDINAL, RANGE, RATIO = RULES
VERSE = compile_rule(
    "verse", r"(?P<chapter>\d{1,3}):(?P<verse>\d{1,3})(?:[-–](?P<to>\d{1,3}))?(?![\w]|:\d)", _read_verse
)
"""Chapter and verse."""
