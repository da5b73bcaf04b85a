"""Postal addresses: house numbers, directions, codes of states, ZIP codes.

1600 Elm Ave. NW, Reno, NV 89501   sixteen hundred Elm avenue northwest Reno Nevada eight nine five zero one
"""

import re

from qkv.pronunciation.normalization.rule import Neighbors, any_of, compile_rule, word_set
from qkv.pronunciation.normalization.values.numbers import Words, digits, pairs
from qkv.pronunciation.normalization.values.science import DIRECTIONS

_STATE_TEXT = (
    "AL Alabama;AK Alaska;AZ Arizona;AR Arkansas;CA California;CO Colorado;CT Connecticut;DE Delaware;FL Florida;"
    "GA Georgia;HI Hawaii;ID Idaho;IL Illinois;IN Indiana;IA Iowa;KS Kansas;KY Kentucky;LA Louisiana;ME Maine;"
    "MD Maryland;MA Massachusetts;MI Michigan;MN Minnesota;MS Mississippi;MO Missouri;MT Montana;NE Nebraska;"
    "NV Nevada;NH New Hampshire;NJ New Jersey;NM New Mexico;NY New York;NC North Carolina;ND North Dakota;OH Ohio;"
    "OK Oklahoma;OR Oregon;PA Pennsylvania;RI Rhode Island;SC South Carolina;SD South Dakota;TN Tennessee;TX Texas;"
    "UT Utah;VT Vermont;VA Virginia;WA Washington;WV West Virginia;WI Wisconsin;WY Wyoming;DC D C;PR Puerto Rico"
)
STATES = {row[:2]: tuple(row[3:].split()) for row in _STATE_TEXT.split(";")}
_CORNERS = {"NE": "northeast", "NW": "northwest", "SE": "southeast", "SW": "southwest"} | DIRECTIONS
_EXCLAIMED = ("OK", "OH", "HI", "ME")
STREETS = "St|Street|Ave|Avenue|Blvd|Boulevard|Rd|Road|Dr|Drive|Ln|Lane|Ct|Court|Pl|Place|Pkwy|Parkway|Hwy|Highway|Way"
_STREET_WORDS = word_set(STREETS.replace("|", " ").lower())
_STREET = rf"(?:[NSEW]\.?[ ])?(?:[A-Z][\w'’]{{1,20}}[ ]|\d{{1,3}}(?:st|nd|rd|th)[ ]){{1,3}}(?:{STREETS})\b"


def _read_house(match: "re.Match[str]", near: Neighbors) -> Words:
    number = match["number"]
    return pairs(number) if len(number) < 5 else digits(number)


def _read_state(match: "re.Match[str]", near: Neighbors) -> Words | None:
    """Read a code after a place and a comma; before a ZIP code, or where a clause ends."""
    if near.before() != "," or not near.before(2)[:1].isupper():
        return None
    if match["state"] == "MD" and not match["zip"]:
        return None  # more often a doctor
    if match["state"] in _EXCLAIMED and not match["zip"] and near.before(3) in ("", ".", "!", "?", ";", ":"):
        return None
    return (*STATES[match["state"]], *(digits(match["zip"].replace("-", "")) if match["zip"] else ()))


def _read_zip(match: "re.Match[str]", near: Neighbors) -> Words | None:
    if len(match["number"]) == 5 and not {near.before().lower(), near.before(2).lower()} & {"zip", "zipcode"}:
        return None
    return digits(match["number"].replace("-", ""))


def _read_direction(match: "re.Match[str]", near: Neighbors) -> Words | None:
    before = near.token_before()
    if before is None:
        return None
    is_street = before.kind != "house" and before.text.lower().rstrip(".") in _STREET_WORDS
    is_first = before.kind == "house" or (before.text.isdecimal() and match["street"] is not None)
    return (_CORNERS[match["way"]],) if is_street or is_first else None


HOUSE = compile_rule("house", rf"(?P<number>[1-9]\d{{2,4}})(?=[ ]{_STREET})", _read_house)
"""The number of a house."""
ZIP = compile_rule("code", r"(?P<number>\d{5}(?:-\d{4})?)(?![\w]|[-.,:/]\d)", _read_zip)
"""A ZIP code after that word, or with its four more digits."""
LETTERS = (
    compile_rule(
        "address",
        rf"(?P<state>{any_of(STATES)})"
        r"(?:,?[ ]{1,2}(?P<zip>\d{5}(?:-\d{4})?)(?![\w]|[-.,]\d)|(?=\s*(?:[,.;:!?)]|$)))",
        _read_state,
    ),
    compile_rule(
        "address",
        r"(?P<way>[NS][EW]|[NSEW])(?:\.(?=[ ]))?(?![\w.'’-])"
        r"(?P<street>(?=[ ]\d{1,3}(?:st|nd|rd|th)\b)|(?<=\.)(?=[ ][A-Z]))?",
        _read_direction,
    ),
)
"""Codes of states and directions of streets."""
