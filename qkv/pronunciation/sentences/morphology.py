"""Words that no dictionary has, made of words that it has: a possessive, a plural, a compound.

kubernetes's  kubernetes and IH0 Z        blogs  blog and Z        gearbox  gear and box
"""

import re
from collections.abc import Callable

from qkv.pronunciation.arpabet import Phones
from qkv.pronunciation.heteronyms.tagger import tagger
from qkv.pronunciation.normalization.names.letters import LETTERS
from qkv.pronunciation.normalization.rule import word_set

MIN_PART = 4
"""Letters in the shortest part of a compound."""
MAX_COMPOUND = 40
_SIBILANTS = word_set("S Z SH ZH CH JH")
_VOICELESS = word_set("P T K F TH")
_ENDINGS = word_set(
    "ness less able ally ably ment ward berg land ling king wood ford stein ties ting ring ding sing ping ming "
    "ration nation lings kings fully ship page better"
)
"""Words that are endings more often than parts of a compound."""

_MAX_SPELLED = 5
_DOUBLE = re.compile(r"(.)\1")
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

Lookup = Callable[[str], tuple[Phones, ...]]


def add_s(phones: Phones) -> Phones:
    """Return phones with the ending of a possessive or a plural: S, Z or IH0 Z."""
    if phones[-1] in _SIBILANTS:
        return (*phones, "IH0", "Z")
    return (*phones, "S" if phones[-1] in _VOICELESS else "Z")


def letter_phones(word: str) -> Phones | None:
    """Return the name of a capital letter, with 's if the word has it; None for other words."""
    name = LETTERS.get(word[:1])
    if name is None or word[1:] not in ("", "'s"):
        return None
    return add_s(name) if len(word) > 1 else name


def spell(word: str) -> Phones:
    """Return the names of the letters of a short word without vowels, such as mrna; empty for psst and other words."""
    lower = word.lower()
    is_short = 2 <= len(word) <= _MAX_SPELLED and word.isascii() and word.isalpha()
    if not is_short or set(lower) & set("aeiouy") or (_DOUBLE.search(lower) and lower != "www"):
        return ()
    return tuple(phone for letter in word for phone in LETTERS[letter.upper()])


def join_parts(word: str, lookup: Lookup) -> Phones:
    """Return the phones of a word with capitals inside by its parts, NaCl: na, C, L; empty if a part is unknown."""
    if word.removesuffix("s").isupper() or word[1:].islower() or not (word.isascii() and word.isalpha()):
        return ()
    parts = [_part(part, lookup) for part in _PARTS.findall(word)]
    return tuple(phone for part in parts for phone in part) if all(parts) else ()


def _part(part: str, lookup: Lookup) -> Phones:
    """Return the phones of a part: two or three capitals are letters, other parts words."""
    if part.isupper() and len(part) < 4:
        return tuple(phone for letter in part for phone in LETTERS[letter])
    return (lookup(part.lower()) or (spell(part),))[0]


def derive(word: str, lookup: Lookup) -> tuple[Phones, ...]:
    """Return pronunciations of a word in lower case by words that a dictionary has; empty if it is not made of them."""
    if word.endswith("'s"):
        return tuple(add_s(phones) for phones in lookup(word[:-2]))
    if word.endswith("s'"):
        return lookup(word[:-1])
    if word.endswith("s") and not word.endswith(("ss", "us", "is")) and len(word) > 3:
        stem = lookup(word[:-1])
        if stem:
            return tuple(add_s(phones) for phones in stem)
    parts = split_compound(word, lookup)
    return tuple(left + right for left in lookup(parts[0])[:1] for right in lookup(parts[1])[:1]) if parts else ()


def split_compound(word: str, lookup: Lookup) -> tuple[str, str] | None:
    """Return the two common words that a compound is made of, as equally long as possible."""
    if not 2 * MIN_PART <= len(word) <= MAX_COMPOUND or not (word.isascii() and word.isalpha()):
        return None
    middle = len(word) / 2
    for place in sorted(range(MIN_PART, len(word) - MIN_PART + 1), key=lambda cut: abs(cut - middle)):
        left, right = word[:place], word[place:]
        if right not in _ENDINGS and _is_common(left) and _is_common(right) and lookup(left) and lookup(right):
            return left, right
    return None


def _is_common(word: str) -> bool:
    return tagger().has_word(word)
