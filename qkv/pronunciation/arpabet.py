"""ARPAbet as CMUdict writes it: 24 consonants, and 15 vowels that may carry a stress digit.

AH0 unstressed    AH1 primary    AH2 secondary    AH stress unknown
"""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

_CONSONANTS = "P B T D K G CH JH F V TH DH S Z SH ZH HH M N NG L R W Y"
_VOWELS = "AA AE AH AO AW AY EH ER EY IH IY OW OY UH UW"
CONSONANTS, VOWELS = tuple(_CONSONANTS.split()), tuple(_VOWELS.split())
STRESSES = ("0", "1", "2")

Phones = tuple[str, ...]

_KNOWN = frozenset((*CONSONANTS, *VOWELS, *(vowel + stress for vowel in VOWELS for stress in STRESSES)))


def split_stress(phone: str) -> tuple[str, str]:
    """Return a phone and its stress digit, empty for consonants and unknown stress."""
    return (phone[:-1], phone[-1]) if phone[-1] in STRESSES else (phone, "")


def is_vowel(phone: str) -> bool:
    """Return whether a phone is a vowel, the nucleus of a syllable."""
    return split_stress(phone)[0] in VOWELS


def strip_stress(phones: Iterable[str]) -> Phones:
    """Return the phones without stress digits."""
    return tuple(split_stress(phone)[0] for phone in phones)


def check_phones(phones: Sequence[str]) -> Phones:
    """Return the phones as a tuple; raise for the first unknown one, naming the nearest known."""
    if not phones:
        raise ValueError("a pronunciation needs at least one phone, got none")
    for phone in phones:
        if phone not in _KNOWN:
            nearest = get_close_matches(phone.upper(), sorted(_KNOWN), n=1)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
            raise ValueError(f"unknown phone {phone!r}{hint}")
    return tuple(phones)
