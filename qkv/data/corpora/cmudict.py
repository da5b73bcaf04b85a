"""The CMU Pronouncing Dictionary: spelling to phones with stress, for 126,052 English words.

    abbott AE1 B AH0 T          (abate(2) ... is another pronunciation of abate)

The file is located by qkv/storage/cmudict_file.py.
"""

import re
from collections.abc import Iterator
from hashlib import blake2b

from qkv.data.dataset_registry import register_dataset
from qkv.data.files.pairs import Pair
from qkv.storage import cmudict_file

_ENTRY = re.compile(r"(?P<word>[a-z'.-]+)(\(\d+\))? (?P<phones>[^#]+?)( #.*)?")


@register_dataset("cmudict")
def cmudict() -> dict[str, list[Pair]]:
    """Load CMUdict, words to phones, in fixed splits: about 93 % "train", 2 % "valid" and 5 % "test"."""
    pronunciations: dict[str, dict[tuple[str, ...], None]] = {}
    for word, phones in entries(cmudict_file.read_text()):
        pronunciations.setdefault(word, {})[phones] = None
    splits: dict[str, list[Pair]] = {"train": [], "valid": [], "test": []}
    for word, targets in pronunciations.items():
        splits[cmudict_split(word)].append(Pair(tuple(word), tuple(targets)))
    return splits


def entries(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield word and phones of each line whose word has only letters, apostrophes, hyphens and dots."""
    for line in text.splitlines():
        if match := _ENTRY.fullmatch(line):
            yield match["word"], tuple(match["phones"].split())


def cmudict_split(word: str) -> str:
    """Return the split of a word: with h = its 8-byte blake2b, h mod 100 < 5 is "test", < 7 "valid", else "train".

    It depends on the word alone, so all its pronunciations share a split, in every version of the dictionary.
    """
    bucket = int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "big") % 100
    if bucket < 5:
        return "test"
    return "valid" if bucket < 7 else "train"
