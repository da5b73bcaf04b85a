"""ARPAbet to the International Phonetic Alphabet, and back without loss.

    HH AH0 L OW1  ->  həˈloʊ  ->  HH AH0 L OW1

One symbol a phone; AH0 is ə and ER0 is ɚ, with stress they are ʌ and ɝ. A stress mark stands before its syllable, which
begins with the longest run of consonants that can begin an English word (and at the start of a word with all of them);
the mark belongs to the next vowel. Affricates carry a tie (t͡ʃ is CH, tʃ is T SH), and where AO meets an IH of the next
syllable without a mark between, a full stop parts them (ɔ.ɪ is AO IH, ɔɪ is OY). That makes it invertible.
"""

import re
from collections.abc import Iterable, Sequence

from qkv.pronunciation.arpabet import CONSONANTS, STRESSES, VOWELS, Phones, is_vowel, split_stress

_CONSONANTS = "p b t d k ɡ t͡ʃ d͡ʒ f v θ ð s z ʃ ʒ h m n ŋ l ɹ w j"
_VOWELS = "ɑ æ ʌ ɔ aʊ aɪ ɛ ɝ eɪ ɪ i oʊ ɔɪ ʊ u"
_SYMBOLS = dict(zip((*CONSONANTS, *VOWELS), f"{_CONSONANTS} {_VOWELS}".split(), strict=True))
_REDUCED = {"AH": "ə", "ER": "ɚ"}
_MARKS = {"1": "ˈ", "2": "ˌ"}
_BREAK = "."

_PHONES = {symbol: phone for table in (_SYMBOLS, _REDUCED) for phone, symbol in table.items()}
_DIGITS = {mark: digit for digit, mark in _MARKS.items()}
_PIECE = re.compile("|".join(sorted((*_PHONES, *_DIGITS, re.escape(_BREAK)), key=len, reverse=True)))

_TWO = "PR PL BR BL TR TW DR DW KR KL KW GR GL GW FR FL THR THW SHR HHW PY BY KY FY VY MY HHY SP ST SK SM SN SL SW SF"
_THREE = "SPR SPL SPY STR SKR SKL SKW SKY"
_ONSETS = frozenset(f"{_TWO} {_THREE}".split())


def to_ipa(phones: Sequence[str], *, stress: bool = True) -> str:
    """A word in IPA; without `stress` there are no marks, and ə and ʌ stay apart."""
    marks = _place_marks(phones) if stress else {}
    text = ""
    for place, phone in enumerate(phones):
        text += marks.get(place, "")
        if split_stress(phone)[0] == "IH" and text.endswith(_SYMBOLS["AO"]):
            text += _BREAK
        text += _symbol(phone)
    return text


def ipa_symbols(phones: Iterable[str], *, stress: bool = True) -> tuple[str, ...]:
    """One text a phone, a mark right before its vowel: for files that keep phones apart by spaces."""
    return tuple((_MARKS.get(split_stress(phone)[1], "") if stress else "") + _symbol(phone) for phone in phones)


def from_ipa(text: str, *, stress: bool = True) -> Phones:
    """The phones of what `to_ipa` wrote; an unmarked vowel is unstressed, or without `stress` has no digit."""
    phones, place, mark = [], 0, ""
    while place < len(text):
        piece = _PIECE.match(text, place)
        if piece is None:
            raise ValueError(
                f"{text!r} has {text[place]!r} at place {place + 1}, which is no symbol of an English phone"
            )
        place = piece.end()
        if piece[0] in _DIGITS:
            if mark:
                raise ValueError(f"{text!r} has two stress marks before one vowel")
            mark = _DIGITS[piece[0]]
        elif piece[0] != _BREAK:
            phone = _PHONES[piece[0]]
            vowel = phone in VOWELS
            phones.append(phone + (mark or STRESSES[0]) if vowel and stress else phone)
            mark = "" if vowel else mark
    if mark:
        raise ValueError(f"{text!r} has a stress mark with no vowel after it")
    return tuple(phones)


def _symbol(phone: str) -> str:
    base, digit = split_stress(phone)
    return _REDUCED.get(base, _SYMBOLS[base]) if digit in ("", STRESSES[0]) else _SYMBOLS[base]


def _place_marks(phones: Sequence[str]) -> dict[int, str]:
    """Place of a syllable's first phone -> its mark."""
    marks, start = {}, 0
    for place, phone in enumerate(phones):
        if not is_vowel(phone):
            continue
        mark = _MARKS.get(split_stress(phone)[1])
        if mark is not None:
            marks[_onset(phones, start, place) if start else 0] = mark
        start = place + 1
    return marks


def _onset(phones: Sequence[str], start: int, vowel: int) -> int:
    """Where the syllable of this vowel begins, among the consonants from `start`: the longest legal onset."""
    for place in range(max(start, vowel - 3), vowel):
        run = phones[place:vowel]
        if "".join(run) in _ONSETS or (len(run) == 1 and run[0] != "NG"):
            return place
    return vowel
