"""The CMU Pronouncing Dictionary: letters of 126,052 English words to their phones, with stress.

    abbott AE1 B AH0 T          (abate(2) ... is a further pronunciation of abate)

Where the file is found: qkv/cmudict_file.py.
"""

import re
from collections.abc import Iterator
from hashlib import blake2b

from qkv import cmudict_file
from qkv.data.files.pairs import Pair

_ENTRY = re.compile(r"(?P<word>[a-z'.-]+)(\(\d+\))? (?P<phones>[^#]+?)( #.*)?")


def cmudict() -> dict[str, list[Pair]]:
    """The dictionary in its fixed parts "train", "valid" and "test": about 93, 2 and 5 % of the words."""
    found: dict[str, dict[tuple[str, ...], None]] = {}
    for word, phones in entries(cmudict_file.read_text()):
        found.setdefault(word, {})[phones] = None
    parts: dict[str, list[Pair]] = {"train": [], "valid": [], "test": []}
    for word, targets in found.items():
        parts[part_of(word)].append(Pair(tuple(word), tuple(targets)))
    return parts


def entries(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Word and phones of every line of words of letters, apostrophe, hyphen and dot; comments are dropped."""
    for line in text.splitlines():
        if match := _ENTRY.fullmatch(line):
            yield match["word"], tuple(match["phones"].split())


def part_of(word: str) -> str:
    """The part a word is held in: with h = the 8-byte blake2b of the word, h mod 100 < 5 is test, < 7 valid.

    It depends on the word alone, so all its pronunciations are in one part, in every version of the dictionary.
    """
    place = int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "big") % 100
    if place < 5:
        return "test"
    return "valid" if place < 7 else "train"
