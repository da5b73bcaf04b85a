"""Convert ARPAbet to the International Phonetic Alphabet and back, without loss.

    HH AH0 L OW1  ->  həˈloʊ  ->  HH AH0 L OW1

One symbol per phone; AH0 is ə and ER0 is ɚ, with stress they are ʌ and ɝ. A stress mark precedes its syllable, which
begins with the longest run of consonants that can begin an English word (at the start of a word, with all of them);
the mark belongs to the next vowel. Affricates carry a tie (t͡ʃ is CH, tʃ is T SH). If no mark separates AO from an IH of
the next syllable, a full stop does (ɔ.ɪ is AO IH, ɔɪ is OY). This makes the conversion invertible.
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
    """Return a word in IPA; `stress=False` omits the marks but keeps ə and ʌ distinct."""
    marks = _locate_marks(phones) if stress else {}
    text = ""
    for index, phone in enumerate(phones):
        text += marks.get(index, "")
        if split_stress(phone)[0] == "IH" and text.endswith(_SYMBOLS["AO"]):
            text += _BREAK
        text += _symbol(phone)
    return text


def ipa_symbols(phones: Iterable[str], *, stress: bool = True) -> tuple[str, ...]:
    """Return one string per phone, each mark directly before its vowel: for files that separate phones by spaces."""
    return tuple((_MARKS.get(split_stress(phone)[1], "") if stress else "") + _symbol(phone) for phone in phones)


def from_ipa(text: str, *, stress: bool = True) -> Phones:
    """Return the phones of a text by `to_ipa`; an unmarked vowel gets stress 0, or no digit with `stress=False`."""
    phones, index, mark = [], 0, ""
    while index < len(text):
        piece = _PIECE.match(text, index)
        if piece is None:
            raise ValueError(
                f"{text!r} has {text[index]!r} at position {index + 1}, which is not the symbol of an English phone"
            )
        index = piece.end()
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


def _locate_marks(phones: Sequence[str]) -> dict[int, str]:
    """Return the stress mark of each marked syllable, by the index of its first phone."""
    marks, start = {}, 0
    for index, phone in enumerate(phones):
        if not is_vowel(phone):
            continue
        mark = _MARKS.get(split_stress(phone)[1])
        if mark is not None:
            marks[_onset_start(phones, start, index) if start else 0] = mark
        start = index + 1
    return marks


def _onset_start(phones: Sequence[str], start: int, vowel: int) -> int:
    """Return where the syllable of this vowel begins: the longest legal onset among the consonants after `start`."""
    for index in range(max(start, vowel - 3), vowel):
        run = phones[index:vowel]
        if "".join(run) in _ONSETS or (len(run) == 1 and run[0] != "NG"):
            return index
    return vowel
