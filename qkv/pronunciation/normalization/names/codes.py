"""Numbers that are names: telephone numbers, versions, rooms and flights, letters and digits together.

555-0123   five five five oh one two three      Python 3.11   three point eleven      F-16   F sixteen
"""

import re

from qkv.pronunciation.normalization.names.initialisms import is_word
from qkv.pronunciation.normalization.rule import Neighbors, compile_rule, word_set
from qkv.pronunciation.normalization.values.amounts import SHORT_MAGNITUDES, amount
from qkv.pronunciation.normalization.values.numbers import Words, cardinal, digits, pairs, plural, spoken_digits

_VERSIONED = word_set(
    "python version versions release java php ruby perl node ios android ubuntu debian fedora macos kernel django "
    "numpy pytorch tensorflow cuda firefox chrome html css bluetooth usb gcc windows postgresql mysql v go rust "
    "swift kotlin"
)
_NUMBERED = word_set(
    "room flight boeing highway route interstate suite apartment apt bus train channel area code building us hwy "
    "rt airbus unit extension ext porsche peugeot gate locker freeway platform"
)
_GROUPED = re.compile(r"\d{1,3}(?:\.\d{3}){2,}")
_TOLL_FREE = {"800": ("eight", "hundred"), "900": ("nine", "hundred")}


def _part(text: str) -> Words:
    return _TOLL_FREE.get(text) or digits(text)


def _read_phone(match: "re.Match[str]", near: Neighbors) -> Words:
    plus = ("plus",) if match[0].lstrip("(").startswith("+") else ()
    words = tuple(word for part in re.findall(r"\d+", match[0]) for word in _part(part))
    if match["extension"]:
        inner = len(re.findall(r"\d", match["extension"]))
        words = (*words[:-inner], "extension", *words[-inner:])
    return (*plus, *words)


def _read_version(match: "re.Match[str]", near: Neighbors) -> Words | None:
    if _GROUPED.fullmatch(match["parts"]):
        return None
    parts = match["parts"].split(".")
    if match["v"]:
        start: Words = ("version",)
    elif len(parts) > 2 or near.before().lower() in _VERSIONED:
        start = ()
    else:
        return None
    words = tuple(word for part in parts[1:] for word in ("point", *_version_part(part)))
    return (*start, *_version_part(parts[0]), *words)


def _version_part(text: str) -> Words:
    return cardinal(text) if len(text) < 5 else digits(text)


def _read_address(match: "re.Match[str]", near: Neighbors) -> Words:
    """Read an IP address digit by digit."""
    address, _, port = match[0].partition(":")
    parts = address.split(".")
    words = tuple(word for index, part in enumerate(parts) for word in (*(("dot",) if index else ()), *digits(part)))
    return (*words, "colon", *digits(port)) if port else words


def _read_vanity(match: "re.Match[str]", near: Neighbors) -> Words:
    """Read a telephone number with words: 1-800-FLOWERS."""
    words: list[str] = ["one"] if match["one"] else []
    words += _part(match["code"])
    for part in match["words"].split("-"):
        words += [part.lower()] if near.known(part.lower()) and len(part) > 2 else list(part)
    return tuple(words)


def _read_groups(match: "re.Match[str]", near: Neighbors) -> Words:
    """Read groups of digits: those of two digits at most are numbers, 4-3-3; longer ones are digits."""
    parts = match[0].split("-")
    is_short = max(map(len, parts)) <= 2
    return tuple(word for part in parts for word in (cardinal(part) if is_short else digits(part)))


def _read_identifier(match: "re.Match[str]", near: Neighbors) -> Words | None:
    if near.before().lower().rstrip(".") not in _NUMBERED:
        return None
    return (*pairs(match["number"]), *(pairs(match["second"]) if match["second"] else ()))


def _read_number_sign(match: "re.Match[str]", near: Neighbors) -> Words:
    return ("number", *cardinal(match["number"].replace(",", "")))


def _read_mixed(match: "re.Match[str]", near: Neighbors) -> Words | None:
    if match["magnitude"]:
        return (*amount(match["amount"]), SHORT_MAGNITUDES[match["magnitude"]])
    pieces = re.findall(r"\d+(?:\.\d+)?|[^\W\d_]+", match[0])
    if len(pieces) > 2 and pieces[-1] == "s":
        return plural(_pieces(pieces[:-1], near))
    return _pieces(pieces, near)


def _pieces(pieces: list[str], near: Neighbors) -> Words:
    if len(pieces) > 16:
        return tuple(
            word
            for piece in pieces
            for word in (digits(piece.replace(".", "")) if piece[0].isdecimal() else _letters(piece))
        )
    return tuple(word for index, piece in enumerate(pieces) for word in _mixed_piece(piece, index, near))


def _mixed_piece(piece: str, index: int, near: Neighbors) -> Words:
    if piece[0].isdecimal():
        whole, _, fraction = piece.partition(".")
        number = _code_number(whole, is_first=index == 0)
        return (*number, *(("point", *digits(fraction)) if fraction else ()))
    if piece.isupper() and len(piece) >= 4 and is_word(piece, near):
        return (piece.lower(),)
    if (not piece.isupper() and len(piece) >= 2 and near.known(piece.lower())) and piece != "s":
        return (piece.lower(),)
    if len(piece) >= 2 and piece[-1] == "s" and piece[:-1].isupper():
        return (*_letters(piece[:-2]), piece[-2] + "'s")
    return _letters(piece) if piece.isascii() else (piece,)


def _code_number(text: str, *, is_first: bool) -> Words:
    if text[0] == "0" and len(text) > 1:
        return spoken_digits(text)
    if len(text) == 3 and (not is_first or text == "401"):
        return pairs(text)
    return _short(text)


def _short(text: str) -> Words:
    return cardinal(text) if len(text) <= 3 else pairs(text) if len(text) == 4 else digits(text)


def _letters(text: str) -> Words:
    return tuple(text.upper())


def _read_plural(match: "re.Match[str]", near: Neighbors) -> Words:
    number = match["number"]
    return plural(pairs(number) if len(number) in (3, 4) else cardinal(number))


RULES = (
    compile_rule(
        "phone",
        r"(?:\+?\d{1,3}[- .]?)?(?:\(\d{3}\)[ ]?|(?<![\d])\d{3}[-. ‑/])\d{3}[-. ‑]\d{4}"
        r"(?:,?[ ](?:ext\.?|x|extension)[ ]?(?P<extension>\d{1,6}))?(?![\w])",
        _read_phone,
    ),
    compile_rule("phone", r"\d{3}[-‑]\d{4}(?P<extension>(?!))?(?![\w]|[-.]\d)", _read_phone),
    compile_rule("phone", r"\+\d{1,3}(?:[ -]\d{2,5}){2,5}(?P<extension>(?!))?(?![\w])", _read_phone),
    compile_rule(
        "code",
        r"(?:25[0-5]|2[0-4]\d|1?\d{1,2})(?:\.(?:25[0-5]|2[0-4]\d|1?\d{1,2})){3}(?::\d{2,5})?(?![\w]|[.:]\d)",
        _read_address,
    ),
    compile_rule("version", r"(?P<v>[vV])?(?P<parts>\d{1,6}(?:\.\d{1,6})+)(?![\w]|\.\d)", _read_version),
    compile_rule("code", r"(?P<number>\d{3,4})(?:-(?P<second>\d{3,4}))?(?![\w]|[-.,]\d)", _read_identifier),
    compile_rule("number", r"\#[ ]?(?P<number>\d{1,3}(?:,\d{3})+|\d{1,9})(?![\w])", _read_number_sign),
)
"""Telephone numbers, versions, addresses, rooms and flights."""
NATIONAL, LOCAL, INTERNATIONAL, IP_ADDRESS, PARTS, IDENTIFIER, NUMBER_SIGN = RULES
VERSION = compile_rule(
    "version", r"(?P<v>v|V(?=\.|\d+\.\d))\.?[ ]?(?P<parts>\d{1,6}(?:\.\d{1,6})*)(?![\w]|\.\d)", _read_version
)
"""v2.1: what begins with a letter."""
MIXED = compile_rule(
    "code",
    r"(?:(?P<amount>\d++\.\d++|\d++(?=[MB][ ][a-z]{2,20}(?:s|ple)\b))(?P<magnitude>[MB])|"
    r"(?:\d++(?:\.\d++)?[A-Za-z]|[A-Z][A-Za-z]*+[-‑]?\d|[A-Za-z]++\d)(?:[-‑]?(?:[A-Za-z]++|\d++(?:\.\d++)?))*+)(?![^\W_])",
    _read_mixed,
)
"""Letters and digits together: MP3, F-16, COVID-19, 4K."""
VANITY = compile_rule(
    "phone",
    r"(?P<one>1-)?(?P<code>8(?:00|33|44|55|66|77|88)|900)-(?P<words>[A-Z]{3,10}(?:-[A-Z]{2,10}){0,2})(?![\w-])",
    _read_vanity,
)
"""A toll-free number with words."""
GROUPS = compile_rule("code", r"\d{1,12}(?:-\d{1,12}){2,12}(?![\w-])", _read_groups)
"""Three groups of digits or more: ISBN 978-3-16-148410-0, a formation 4-3-3."""
EMERGENCY = compile_rule("phone", r"911(?P<extension>(?!))?(?![\w]|[.,:/-]\d)", _read_phone)
"""The number to call in an emergency."""
PLURAL = compile_rule("cardinal", r"(?P<number>\d{1,6})['’]?s\b", _read_plural)
"""Plurals of numbers, as in two 6s."""
