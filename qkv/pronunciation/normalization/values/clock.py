"""Times of day: 3:45 pm three forty five P M, 3:00 three o'clock, 7am seven A M."""

import re

from qkv.pronunciation.normalization.rule import Neighbors, compile_rule
from qkv.pronunciation.normalization.values.amounts import DASH
from qkv.pronunciation.normalization.values.numbers import Words, cardinal

_HALF = r"(?:[ \u00a0]?(?P<half>[aApP]\.?[mM]\b\.?))"
_HOUR, _MINUTE = r"(?:[01]?\d|2[0-4])", r"[0-5]\d"


def _time(hour: str, minute: str | None, half: Words) -> Words:
    hours = cardinal(str(int(hour)))
    if minute is None:
        return (*hours, *half)
    if minute == "00":
        if half:
            return (*hours, *half)
        return (*hours, "o'clock") if 1 <= int(hour) <= 12 else (*hours, "hundred")
    spoken = ("oh", *cardinal(minute[1])) if minute[0] == "0" else cardinal(minute)
    return (*hours, *spoken, *half)


def _half(text: str | None) -> Words:
    return (text[0].upper(), "M") if text else ()


def _read_time(match: "re.Match[str]", near: Neighbors) -> Words | None:
    half = _half(match["half"])
    if near.after(match.end()).lower() in ("o'clock", "hours", "oclock") and match["minute"] == "00":
        return cardinal(str(int(match["hour"])))
    first = _time(match["hour"], match["minute"], () if match["to"] else half)
    if match["to"]:
        if match["minute"] == "00" and first[-1] == "o'clock":
            first = first[:-1]
        last = _time(match["to"], match["to_minute"], half)
        return (*first, "to", *(last[:-1] if last[-1] == "o'clock" else last))
    return first


def _read_seconds(match: "re.Match[str]", near: Neighbors) -> Words:
    seconds = cardinal(str(int(match["second"])))
    start = _time(match["hour"], match["minute"], ())
    return (*start, "and", *seconds, "second" if seconds == ("one",) else "seconds", *_half(match["half"]))


def _read_hour(match: "re.Match[str]", near: Neighbors) -> Words:
    half = _half(match["half"])
    to = ("to", *_time(match["to"], None, half)) if match["to"] else half
    first_half = _half(match["first"]) if match["first"] else ()
    return (*cardinal(str(int(match["hour"]))), *first_half, *to)


RULES = (
    compile_rule(
        "time", rf"(?P<hour>{_HOUR}):(?P<minute>{_MINUTE}):(?P<second>{_MINUTE})(?![\w:.]\w){_HALF}?", _read_seconds
    ),
    compile_rule(
        "time",
        rf"(?P<hour>{_HOUR}):(?P<minute>{_MINUTE})(?!\d|:\d)"
        rf"(?:{DASH}(?P<to>{_HOUR})(?::(?P<to_minute>{_MINUTE})(?!\d|:\d)|(?=[ ]?[aApP]\.?[mM]\b)))?{_HALF}?",
        _read_time,
    ),
    compile_rule(
        "time",
        rf"(?P<hour>1[0-2]|[1-9])(?:[ ]?(?P<first>[aApP]\.?[mM]\.?))?{DASH}(?P<to>1[0-2]|[1-9]){_HALF}",
        _read_hour,
    ),
    compile_rule("time", rf"(?P<hour>1[0-2]|0?[1-9])(?P<first>(?!))?(?P<to>(?!))?{_HALF}", _read_hour),
)
"""Times; a number followed by am or pm is one too."""
