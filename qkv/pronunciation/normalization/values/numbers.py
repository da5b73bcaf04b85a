"""Numbers as words, in American English: cardinals, ordinals, years, digits. All functions take text of ASCII digits.

1234   one thousand two hundred thirty four
1987   nineteen eighty seven (as a year)
"""

import re

_SMALL_TEXT = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_SMALL = _SMALL_TEXT.split()
_TENS_TEXT = "_ _ twenty thirty forty fifty sixty seventy eighty ninety"
_TENS = _TENS_TEXT.split()
_PREFIX_TEXT = "m b tr quadr quint sext sept oct non dec undec"
_PREFIXES = _PREFIX_TEXT.split()
SCALES = ("", "thousand", *(prefix + "illion" for prefix in _PREFIXES))
"""Names of the powers of 1,000."""
MAX_DIGITS = 3 * len(SCALES)
"""Digits of the longest number that is read as a cardinal; longer ones are read digit by digit."""
_IRREGULAR = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}

Words = tuple[str, ...]


def digits(text: str) -> Words:
    """Return each digit as a word."""
    return tuple(_SMALL[int(digit)] for digit in text)


def spoken_digits(text: str) -> Words:
    """Return digits as in a code or a telephone number, 0 as oh."""
    return tuple("oh" if digit == "0" else _SMALL[int(digit)] for digit in text)


def cardinal(text: str) -> Words:
    """Return a number as words; digit by digit if it begins with 0 or is longer than `MAX_DIGITS`."""
    if len(text) > MAX_DIGITS or (len(text) > 1 and text[0] == "0"):
        return digits(text)
    if text == "0":
        return ("zero",)
    groups = [text[max(0, end - 3) : end] for end in range(len(text), 0, -3)]
    words: list[str] = []
    for power in range(len(groups) - 1, -1, -1):
        group = _below_1000(int(groups[power]))
        words += group
        if group and power:
            words.append(SCALES[power])
    return tuple(words)


def ordinal(text: str) -> Words:
    """Return the ordinal of a number: twenty first."""
    return as_ordinal(cardinal(text))


def as_ordinal(words: Words) -> Words:
    """Return words of a cardinal with the last one made an ordinal."""
    last = words[-1]
    if last in _IRREGULAR:
        ending = _IRREGULAR[last]
    elif last.endswith("y"):
        ending = last[:-1] + "ieth"
    else:
        ending = last + "th"
    return (*words[:-1], ending)


def year(text: str) -> Words:
    """Return a year: 1066 ten sixty six, 1905 nineteen oh five, 1900 nineteen hundred, 2007 two thousand seven."""
    number = int(text) if len(text) <= 4 else 0
    if not 1000 <= number <= 9999 or number % 1000 < 10:
        return cardinal(text)
    century, rest = divmod(number, 100)
    if rest == 0:
        return (*_below_1000(century), "hundred")
    return (*_below_1000(century), *(("oh",) if rest < 10 else ()), *_below_1000(rest))


def pairs(text: str) -> Words:
    """Return a number as in a street, a room or a flight: 747 seven forty seven, 101 one oh one."""
    if not 3 <= len(text) <= 4 or text[0] == "0" or text.endswith("00"):
        return year(text) if len(text) == 4 and text[0] != "0" else cardinal(text)
    if len(text) == 4:
        return year(text)
    rest = spoken_digits(text[1:]) if text[1] == "0" else _below_1000(int(text[1:]))
    return (*_below_1000(int(text[0])), *rest)


def plural(words: Words) -> Words:
    """Return words with the last one in the plural: nineteen nineties, sixes."""
    last = words[-1]
    if last.endswith("y"):
        ending = last[:-1] + "ies"
    elif last.endswith(("x", "s", "ch")):
        ending = last + "es"
    else:
        ending = last + "s"
    return (*words[:-1], ending)


def decimal(whole: str, fraction: str) -> Words:
    """Return a decimal: three point one four; nothing is said for a missing whole part."""
    return (*(cardinal(whole) if whole else ()), "point", *digits(fraction))


def without_separators(text: str) -> str:
    """Return a number without the commas, the spaces or the several dots between its groups."""
    joined = re.sub(r"[,\s]", "", text)
    return joined.replace(".", "") if joined.count(".") > 1 else joined


def _below_1000(number: int) -> list[str]:
    words = []
    if number >= 100:
        words += [_SMALL[number // 100], "hundred"]
    number %= 100
    if number >= 20:
        words.append(_TENS[number // 10])
        number %= 10
    if number:
        words.append(_SMALL[number])
    return words
