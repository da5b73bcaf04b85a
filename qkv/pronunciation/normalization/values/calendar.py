"""Dates, years, decades and centuries, read the American way.

May 3, 2024   May third twenty twenty four      3 May   the third of May      5/3/2024   May third twenty twenty four
1990s   nineteen nineties      '90s   nineties      44 BC   forty four B C
"""

import re

from qkv.pronunciation.normalization.rule import Neighbors, any_of, compile_rule, word_set
from qkv.pronunciation.normalization.values.amounts import DASH
from qkv.pronunciation.normalization.values.numbers import Words, cardinal, ordinal, plural, year

_MONTH_TEXT = "January February March April May June July August September October November December"
MONTHS = _MONTH_TEXT.split()
_SHORT = {name[:3]: name for name in MONTHS} | {"Sept": "September"}
MONTH_NAMES = {name: name for name in MONTHS} | _SHORT
DAY_NAMES = {"Mon": "Monday", "Tue": "Tuesday", "Tues": "Tuesday", "Wed": "Wednesday", "Thu": "Thursday"}
DAY_NAMES |= {"Thur": "Thursday", "Thurs": "Thursday", "Fri": "Friday", "Sat": "Saturday", "Sun": "Sunday"}
_ERAS = {"BC": ("B", "C"), "AD": ("A", "D"), "BCE": ("B", "C", "E"), "CE": ("C", "E")}
_YEAR_CUES = word_set(
    "in since by from until till before after during year circa around early late mid through between spring "
    "summer fall autumn winter january february march april may june july august september october november "
    "december and of for fl. b. d. r. c. ca. est. class season vintage election calendar fiscal about back to"
)
_NOT_YEAR_AFTER = word_set(
    "people miles kilometers meters feet pounds dollars pages words men women years days hours minutes seconds "
    "percent points votes students workers soldiers troops calories square copies items employees members units "
    "million children residents tons acres bottles books jobs deaths cases volunteers visitors guests seats rooms"
)
_NAMES = any_of({*MONTH_NAMES, *DAY_NAMES, *DAY_NAMES.values()})
_MONTH = rf"(?P<month>{any_of(MONTH_NAMES)})\b\.?"
_DAY = r"(?P<day>0?[1-9]|[12]\d|3[01])(?P<ending>st|nd|rd|th)?(?![\w%°]|[.,:]\d|[-/]\d)"
_YEAR = r"(?P<year>[12]\d{3})(?![\w]|[.,]\d)"


def _date(month: int | str, day: str, year_text: str | None = None) -> Words:
    name = MONTHS[month - 1] if isinstance(month, int) else MONTH_NAMES[month]
    return (name, *ordinal(str(int(day))), *(year(year_text) if year_text else ()))


def _read_month_day(match: "re.Match[str]", near: Neighbors) -> Words | None:
    to = match["to"]
    words = _date(match["month"], match["day"])
    if to:
        words = (*words, "to", *ordinal(to))
    return (*words, *(year(match["year"]) if match["year"] else ()))


def _read_day_month(match: "re.Match[str]", near: Neighbors) -> Words:
    article = () if near.before().lower() == "the" else ("the",)
    end = (*ordinal(str(int(match["day"]))), "of", MONTH_NAMES[match["month"]])
    return (*article, *end, *(year(match["year"]) if match["year"] else ()))


def _read_days_month(match: "re.Match[str]", near: Neighbors) -> Words:
    article = () if near.before().lower() == "the" else ("the",)
    days = (*article, *ordinal(str(int(match["first"]))), "to", "the", *ordinal(str(int(match["day"]))))
    return (*days, "of", MONTH_NAMES[match["month"]], *(year(match["year"]) if match["year"] else ()))


def _read_date_dash(match: "re.Match[str]", near: Neighbors) -> Words | None:
    """Read a dash between two dates, or between a date and the present."""
    before = near.token_before()
    return ("to",) if before is not None and before.kind in ("date", "year") else None


def _read_month_year(match: "re.Match[str]", near: Neighbors) -> Words:
    return (MONTH_NAMES[match["month"]], *year(match["year"]))


def _read_names(match: "re.Match[str]", near: Neighbors) -> Words:
    names = MONTH_NAMES | DAY_NAMES
    return (names.get(match["first"], match["first"]), "to", names.get(match["second"], match["second"]))


def _read_iso(match: "re.Match[str]", near: Neighbors) -> Words | None:
    if not (1 <= int(match["m"]) <= 12 and 1 <= int(match["d"]) <= 31):
        return None
    return _date(int(match["m"]), match["d"], match["year"])


def _read_slashes(match: "re.Match[str]", near: Neighbors) -> Words | None:
    first, second, last = int(match["a"]), int(match["b"]), match["year"]
    month, day = (first, second) if first <= 12 else (second, first)
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    if len(last) == 2:
        return (*_date(month, str(day)), *(year(f"{'20' if int(last) < 40 else '19'}{last}")))
    return _date(month, str(day), last)


def _read_era(match: "re.Match[str]", near: Neighbors) -> Words:
    era = _ERAS[re.sub(r"[. ]", "", match["era"]).upper()]
    to = ("to", *year(match["to"])) if match["to"] else ()
    return (*year(match["year"].replace(",", "")), *to, *era)


def _read_era_first(match: "re.Match[str]", near: Neighbors) -> Words:
    return ("A", "D", *year(match["year"]))


def _read_decade(match: "re.Match[str]", near: Neighbors) -> Words:
    return _decade(match["decade"])


def _read_owner(match: "re.Match[str]", near: Neighbors) -> Words:
    words = year(match["year"])
    return (*words[:-1], words[-1] + "'s")


def _decade(number: str) -> Words:
    if len(number) == 2:
        return plural(cardinal(str(int(number)))) if number != "00" else ("two", "thousands")
    if number.endswith("000"):
        return (*cardinal(number[0]), "thousands")
    if number.endswith("00"):
        return (*year(number)[:-1], "hundreds")
    return plural(year(number))


def _read_decades(match: "re.Match[str]", near: Neighbors) -> Words:
    return (*_decade(match["first"]), "to", *_decade(match["second"]))


def _read_short_year(match: "re.Match[str]", near: Neighbors) -> Words:
    number = match["year"]
    return ("oh", *cardinal(number[1])) if number[0] == "0" else cardinal(number)


def _read_years(match: "re.Match[str]", near: Neighbors) -> Words | None:
    first, second = match["year"], match["to"]
    if len(second) == 2:
        if second < first[2:]:
            return None
        return (*year(first), "to", *(("oh", *cardinal(second[1])) if second[0] == "0" else cardinal(second)))
    return (*year(first), "to", *year(second))


def _read_year(match: "re.Match[str]", near: Neighbors) -> Words | None:
    number, before = match["year"], near.before().lower()
    after = near.after(match.end())
    if before in "#$" and before:
        return None
    if after.lower() in _NOT_YEAR_AFTER:
        return None
    cued = before in _YEAR_CUES or before == "("
    if cued and not _counts(after):
        return year(number)
    if "1400" <= number <= "2099" and not _counts(after):
        return year(number)
    return None


_NOT_COUNTED = word_set("was is has as's its his this us yes does across perhaps always besides versus plus")


def _counts(after: str) -> bool:
    """Return whether the next word is a plural noun that the number counts."""
    lower = after.lower()
    return (
        after == lower and lower.endswith("s") and not lower.endswith(("ss", "us", "is")) and lower not in _NOT_COUNTED
    )


RULES = (
    compile_rule("date", r"(?P<year>[12]\d{3})[-/.](?P<m>\d{2})[-/.](?P<d>\d{2})(?![\w]|[-/.]\d)", _read_iso),
    compile_rule(
        "date",
        r"(?P<a>\d{1,2})(?P<s>[/.-])(?P<b>\d{1,2})(?P=s)(?P<year>[12]\d{3}|(?<=/)\d{2})(?![\w]|[-/.]\d)",
        _read_slashes,
    ),
    compile_rule(
        "date",
        rf"(?P<day>0?[1-9]|[12]\d|3[01])(?:st|nd|rd|th)?[ ](?:of[ ])?{_MONTH}(?:,?[ ]{_YEAR})?",
        _read_day_month,
    ),
    compile_rule(
        "year",
        rf"(?P<year>\d{{1,3}}(?:,\d{{3}})?|\d{{1,5}})(?:{DASH}(?P<to>\d{{1,4}}))?[ ]?"
        r"(?P<era>B\.?C\.?E\.?|B\.?C\.?|A\.?D\.?|C\.?E\.?)(?![\w])",
        _read_era,
    ),
    compile_rule("year", r"(?P<year>1\d{3}|20\d{2})[-–—](?P<to>1\d{3}|20\d{2}|\d{2})(?![\w]|[-–.,/]\d)", _read_years),
    compile_rule("decade", r"(?P<mark>['’‘])?(?P<decade>(?<!['’‘])[12]\d\d0|\d0)['’]?s\b", _read_decade),
    compile_rule("year", r"['’‘](?P<year>\d{2})(?![\w])", _read_short_year),
    compile_rule("year", _YEAR, _read_year),
)
"""Dates that begin with a digit or an apostrophe."""
ISO, SLASHES, DAY_MONTH, ERA, YEARS, DECADE, SHORT_YEAR, YEAR = RULES
OWNER = compile_rule("year", r"(?P<year>(?:1[1-9]|20)\d[1-9])['’]s\b", _read_owner)
"""The possessive of a year: 1984's."""
DECADES = compile_rule("decade", r"(?P<first>[12]\d\d0)s?[-–—](?P<second>(?:[12]\d)?\d0)['’]?s\b", _read_decades)
"""Decades from one to another."""
MONTH_RULES = (
    compile_rule(
        "date",
        rf"{_MONTH}[ ]{_DAY.replace('[-/]', '/')}(?:[ ]?[-–][ ]?(?P<to>\d{{1,2}})(?![\w]))?(?:,?[ ]{_YEAR})?",
        _read_month_day,
    ),
    compile_rule("date", rf"{_MONTH},?[ ]{_YEAR}", _read_month_year),
    compile_rule("range", rf"(?P<first>{_NAMES})\b\.?[-–—](?P<second>{_NAMES})\b(?:\.(?=[ ]?[a-z(,;]))?", _read_names),
)
"""Dates that begin with the name of a month."""
DAYS_MONTH = compile_rule(
    "date",
    rf"(?P<first>0?[1-9]|[12]\d|3[01]){DASH}(?P<day>0?[1-9]|[12]\d|3[01])[ ]{_MONTH}(?:,?[ ]{_YEAR})?",
    _read_days_month,
)
"""Days of one month: 3-5 May."""
DATE_DASH = compile_rule(
    "range",
    rf"[-–—−](?=[ ]?(?:(?:0?[1-9]|[12]\d|3[01])[ ])?{any_of(MONTH_NAMES)}\b|[ ]?(?:present|now|today)\b)",
    _read_date_dash,
)
"""The dash between two dates."""
ERA_FIRST = compile_rule("year", r"A\.?D\.?[ ](?P<year>\d{1,4})(?![\w])", _read_era_first)
