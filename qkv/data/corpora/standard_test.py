"""The 12,000 words of the standard CMUdict test list, as hashes: enough to keep them out of training.

    prefix(word) = the first 4 bytes of the 8-byte blake2b of the word in lower case

Every pronouncer since 2007 is measured on these words (PRONALSYL 2007, "g014b2b"), so none that we ship may have seen
them. The file holds the sorted prefixes and no word. With 32 bits about one other word in 360,000 is kept out too.
"""

import re
import unicodedata
from collections.abc import Iterable
from functools import cache
from hashlib import blake2b
from pathlib import Path

FILE = Path(__file__).with_name("standard_test.bin")
PREFIX_BYTES = 4
_FURTHER = re.compile(r"\s*\(\d+\)$")


def in_standard_test(word: str) -> bool:
    """Whether the word, in any case, is one of the standard test list; `word(2)`, its further pronunciation, is too."""
    return _prefix(headword(word)) in _prefixes()


def headword(word: str) -> str:
    """The word that an entry is of: in lower case, without the number of a further pronunciation or spaces around.

    Or a list with `Word(2)` in it would bring back what was kept out.
    """
    return _FURTHER.sub("", unicodedata.normalize("NFKC", word).strip().lower())


def pack_words(words: Iterable[str]) -> bytes:
    """The contents of the file for these words: what `standard_test.bin` was made with."""
    return b"".join(sorted({_prefix(word) for word in words}))


def _prefix(word: str) -> bytes:
    return blake2b(word.lower().encode(), digest_size=8).digest()[:PREFIX_BYTES]


@cache
def _prefixes() -> frozenset[bytes]:
    data = FILE.read_bytes()
    return frozenset(data[start : start + PREFIX_BYTES] for start in range(0, len(data), PREFIX_BYTES))
