"""Amounts: whole numbers with commas, decimals and magnitudes, alone and with a sign of percent or of currency."""

import re

from qkv.pronunciation.normalization.rule import Neighbors, any_of, compile_rule, word_set
from qkv.pronunciation.normalization.values.numbers import Words, cardinal, decimal, plural, without_separators

_SPACE = "[\u00a0\u2009\u202f]"
WHOLE = (
    rf"(?>\d{{1,3}}(?:,\d{{3}})++(?!\d)|\d{{1,2}}(?:,\d{{2}}){{1,4}},\d{{3}}(?![,\d])"
    rf"|\d{{1,3}}(?:(?:{_SPACE}\d{{3}})++|(?:[ ]\d{{3}}){{2,10}}|[ ]000)(?![,\d]|[ ]\d)"
    rf"|\d{{1,3}}(?:\.\d{{3}}){{2,10}}(?![.\d])|\d++)"
)
"""A whole number; its groups may be separated by commas (of lakhs, too), spaces, or more than one dot."""
AMOUNT = rf"(?>{WHOLE}(?:\.\d++)?|\.\d++)"
DASH = r"[ ]?[-–—−‑][ ]?"
END = r"(?![\w])"
MAGNITUDES = ("hundred", "thousand", "million", "billion", "trillion", "quadrillion")
SHORT_MAGNITUDES = {
    "k": "thousand",
    "K": "thousand",
    "m": "million",
    "M": "million",
    "mn": "million",
    "MM": "million",
    "b": "billion",
    "B": "billion",
    "bn": "billion",
    "Bn": "billion",
    "BN": "billion",
    "t": "trillion",
    "T": "trillion",
    "tn": "trillion",
    "trn": "trillion",
}
CURRENCIES = {
    "$": ("dollar", "dollars", "cent", "cents"),
    "£": ("pound", "pounds", "penny", "pence"),
    "₤": ("pound", "pounds", "penny", "pence"),
    "€": ("euro", "euros", "cent", "cents"),
    "¥": ("yen", "yen", "sen", "sen"),
    "₹": ("rupee", "rupees", "paisa", "paise"),
    "₩": ("won", "won", "jeon", "jeon"),
    "₽": ("ruble", "rubles", "kopek", "kopeks"),
    "₿": ("bitcoin", "bitcoins", "satoshi", "satoshis"),
}
_NATIONS = {"US": ("U", "S"), "C": ("Canadian",), "CA": ("Canadian",), "A": ("Australian",), "AU": ("Australian",)}
_NATIONS |= {"NZ": ("New", "Zealand"), "HK": ("Hong", "Kong"), "S": ("Singapore",)}
_CODES = {
    "USD": ("U S dollar", "U S dollars"),
    "EUR": ("euro", "euros"),
    "GBP": ("British pound", "British pounds"),
    "JPY": ("yen", "yen"),
    "CAD": ("Canadian dollar", "Canadian dollars"),
    "AUD": ("Australian dollar", "Australian dollars"),
    "CHF": ("Swiss franc", "Swiss francs"),
}
_UNIT_AFTER = r"(?:[-\s](?:bill|note|coin|stamp|ticket|fee|fine|tip)\b|-a)"
_DETERMINERS = word_set("a an the this that his her my our its their your each every")
_NOT_NOUNS = word_set(
    "per for more less off each from when than plus every between apart away long wide tall high deep thick ago later "
    "and that which was were are have had will would can could with into over under they she you the before after "
    "until since above below where while because but daily"
)
_SIGNS = "[" + "".join(map(re.escape, CURRENCIES)) + "]"
_MAGNITUDE = rf"(?:[ -]?(?P<long>{any_of(MAGNITUDES)})\b|[ ]?(?P<short>{any_of(SHORT_MAGNITUDES)})(?![\w]))?"


def amount(text: str) -> Words:
    """Return an amount with commas or a decimal point as words."""
    whole, point, fraction = without_separators(text).partition(".")
    return decimal(whole, fraction) if point else cardinal(whole)


def is_one(text: str) -> bool:
    """Return whether an amount takes the singular."""
    return without_separators(text) == "1"


def _stands_before_noun(match: "re.Match[str]", near: Neighbors) -> bool:
    """Return whether an amount describes the next noun: a $20 bill, a $3 million deal."""
    after = near.text[match.end() : match.end() + 9]
    if re.match(_UNIT_AFTER, after):
        return True
    return after[:1] == " " and describes(near, match.end())


def describes(near: Neighbors, end: int) -> bool:
    """Return whether an amount describes the next noun: the 5 km run; not so: the 5 km between us."""
    before, following = near.before().lower(), near.after(end)
    return before in _DETERMINERS and len(following) > 2 and following.islower() and following not in _NOT_NOUNS


def _read_money(match: "re.Match[str]", near: Neighbors) -> Words:
    number, magnitude = match["number"], match["long"] or SHORT_MAGNITUDES.get(match["short"] or "", "")
    one, many, cent, cents = CURRENCIES[match["sign"]]
    minus = ("minus",) if match["minus"] else ()
    nation = _NATIONS.get(match["nation"] or "", ())
    if match["to"]:
        return (*minus, *amount(number), "to", *amount(match["to"]), *magnitude.split(), *nation, many)
    is_adjective = _stands_before_noun(match, near)
    if magnitude:
        is_adjective = is_adjective or "-" in match[0][-len(magnitude) - 1 :]
        return (*minus, *amount(number), magnitude, *nation, one if is_adjective else many)
    whole, _, fraction = without_separators(number).partition(".")
    if len(fraction) > 2 or len(fraction) == 1:
        return (*minus, *amount(number), *nation, many)
    words = () if whole in ("", "0") and fraction.strip("0") else (*cardinal(whole or "0"), *nation)
    if words:
        words = (*words, one if whole == "1" or (is_adjective and not fraction.strip("0")) else many)
    if fraction.strip("0"):
        small = cardinal(str(int(fraction)))
        words = (*words, *(("and",) if words else ()), *small, cent if int(fraction) == 1 else cents)
    return (*minus, *words)


def _read_code(match: "re.Match[str]", near: Neighbors) -> Words:
    one, many = _CODES[match["before"] or match["after"]]
    number = match["number"]
    magnitude = (match["long"],) if match["long"] else ()
    return (*amount(number), *magnitude, *(one if is_one(number) and not magnitude else many).split())


def _read_bills(match: "re.Match[str]", near: Neighbors) -> Words:
    return plural(cardinal(match["number"]))


def _read_sign_after(match: "re.Match[str]", near: Neighbors) -> Words:
    one, many, *_ = CURRENCIES[match["sign"]]
    return (*amount(match["number"]), one if is_one(match["number"]) else many)


def _read_cents(match: "re.Match[str]", near: Neighbors) -> Words:
    return (*amount(match["number"]), "cent" if is_one(match["number"]) else "cents")


def _read_percent(match: "re.Match[str]", near: Neighbors) -> Words:
    to = ("to", *amount(match["to"])) if match["to"] else ()
    return (*sign(match["sign"]), *amount(match["number"]), *to, *_PERCENT[match["unit"]])


def _read_magnitude(match: "re.Match[str]", near: Neighbors) -> Words:
    to = ("to", *amount(match["to"])) if match["to"] else ()
    return (*sign(match["sign"]), *amount(match["number"]), *to, match["long"])


def _read_amount(match: "re.Match[str]", near: Neighbors) -> Words | None:
    return (*sign(match["sign"]), *amount(match["number"]))


_PERCENT = {"%": ("percent",), "‰": ("per", "thousand")}
_SIGN_WORDS: dict[str, Words] = {"+": ("plus",), "±": ("plus", "or", "minus"), "~": ("about",), "≈": ("about",)}


def sign(text: str | None) -> Words:
    """Return the word of a sign before a number."""
    return _SIGN_WORDS.get(text, ("minus",)) if text else ()


SIGN = r"(?:(?P<sign>(?<![\w)\]])[-−–+±~≈]))?"
RULES = (
    compile_rule("money", r"\$(?P<number>\d{1,6})['’]?s\b", _read_bills),
    compile_rule(
        "money",
        rf"(?P<minus>(?<![\w)])[-−])?(?P<nation>{any_of(_NATIONS)})?(?P<sign>{_SIGNS})[ ]?(?P<number>{AMOUNT})"
        rf"(?:{DASH}{_SIGNS}?(?P<to>{AMOUNT})(?!(?!{any_of(SHORT_MAGNITUDES)}(?![\w-]))[\w.-]*[A-Za-z-]))?{_MAGNITUDE}",
        _read_money,
    ),
    compile_rule(
        "money",
        rf"(?:(?P<before>{any_of(_CODES)})[ ]?(?P<number>{AMOUNT})(?:[ ](?P<long>{any_of(MAGNITUDES)})\b)?"
        r"(?P<after>\b))",
        _read_code,
    ),
    compile_rule(
        "money",
        rf"(?P<number>{AMOUNT})(?:[ ](?P<long>{any_of(MAGNITUDES)}))?[ ](?P<after>{any_of(_CODES)})\b(?P<before>)",
        _read_code,
    ),
    compile_rule("money", rf"(?P<number>{AMOUNT})[ ]?¢", _read_cents),
    compile_rule("money", rf"(?P<number>{AMOUNT})[ ]?(?P<sign>{_SIGNS})(?!\d)", _read_sign_after),
    compile_rule(
        "percent",
        rf"{SIGN}(?P<number>{AMOUNT})[ ]?%?(?:{DASH}(?P<to>{AMOUNT}))?[ ]?(?P<unit>[%‰])",
        _read_percent,
    ),
    compile_rule(
        "cardinal",
        rf"{SIGN}(?P<number>{AMOUNT})(?:{DASH}(?P<to>{AMOUNT}))?[ -](?P<long>{any_of(MAGNITUDES)})\b",
        _read_magnitude,
    ),
)
"""Money, percentages, and numbers with a magnitude."""
BILLS, MONEY, CODE_FIRST, CODE_LAST, CENTS, SIGN_LAST, PERCENT, MAGNITUDE = RULES
PLAIN = (
    compile_rule("cardinal", rf"{SIGN}(?P<number>{WHOLE})(?!\.\d)", _read_amount),
    compile_rule("decimal", rf"{SIGN}(?P<number>{AMOUNT})", _read_amount),
)
"""A number by itself."""
