"""Hashes of the 12,000 words of the standard CMUdict test list, to keep them out of training.

    prefix(word) = the first 4 bytes of the 8-byte blake2b of the word in lower case

Published pronouncers since 2007 are measured on this list (PRONALSYL 2007, "g014b2b"), so no shipped model may have
seen it. The file holds the sorted prefixes and no word. At 32 bits about one other word in 360,000 is excluded too.
"""

import re
import unicodedata
from collections.abc import Iterable
from functools import cache
from hashlib import blake2b
from pathlib import Path

FILE = Path(__file__).with_name("cmudict_test_words.bin")
PREFIX_BYTES = 4
_VARIANT_SUFFIX = re.compile(r"\s*\(\d+\)$")


def is_cmudict_test_word(word: str) -> bool:
    """Return whether the word is in the standard test list; ignore its case and a variant number, as in `Word(2)`."""
    return _hash_prefix(headword(word)) in _stored_prefixes()


def headword(word: str) -> str:
    """Return the word of a dictionary entry: in lower case, without outer spaces and the `(2)` of a variant.

    Without this a word list that contains `Word(2)` would bring test words back into training.
    """
    return _VARIANT_SUFFIX.sub("", unicodedata.normalize("NFKC", word).strip().lower())


def pack_word_hashes(words: Iterable[str]) -> bytes:
    """Return the contents of `cmudict_test_words.bin` for these words."""
    return b"".join(sorted({_hash_prefix(word) for word in words}))


def _hash_prefix(word: str) -> bytes:
    return blake2b(word.lower().encode(), digest_size=8).digest()[:PREFIX_BYTES]


@cache
def _stored_prefixes() -> frozenset[bytes]:
    data = FILE.read_bytes()
    return frozenset(data[start : start + PREFIX_BYTES] for start in range(0, len(data), PREFIX_BYTES))
