"""Pairs of sequences, one source and its accepted targets, from a tab-separated file.

    source TAB target [TAB target ...]

Several lines with the same source are one pair with several targets.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

from qkv.registry import unknown_name_error
from qkv.storage import QkvError, open_file

LONGEST_LINE = 100_000
"""Bytes; a longer line is bad, and is never read whole."""

Tokens = tuple[str, ...]

_SPLIT: dict[str, Callable[[str], Tokens]] = {
    "characters": lambda text: tuple(text.strip()),
    "words": lambda text: tuple(text.split()),
}


@dataclass(frozen=True)
class Pair:
    """A source and every target that is right for it, at least one."""

    source: Tokens
    targets: tuple[Tokens, ...]


@dataclass(frozen=True)
class BadLine:
    """A line that is no pair, counted from 1, and why."""

    number: int
    reason: str


@dataclass(frozen=True)
class Pairs:
    """What a file held: the pairs in the order in which their sources first came, and the lines that are none."""

    pairs: tuple[Pair, ...]
    bad: tuple[BadLine, ...]


def read_pairs(path: Path | str, *, source: str = "characters", target: str = "words", strict: bool = False) -> Pairs:
    """Read a file of pairs; each side is split into its "characters" or its "words".

    Blank lines are skipped and a repeated target is dropped. Bad lines are collected, or with `strict` raised.
    """
    path = Path(path)
    for side, unit in (("source", source), ("target", target)):
        if unit not in _SPLIT:
            raise unknown_name_error(f"{side} unit", unit, _SPLIT)
    found: dict[Tokens, dict[Tokens, None]] = {}
    bad: list[BadLine] = []
    lines = 0
    # a character for each byte: what is no UTF-8 is told line by line
    with TextIOWrapper(open_file(path), "latin-1") as file:
        for lines, line in enumerate(_lines(file), 1):
            try:
                fields = _fields(line, first=lines == 1)
                if fields:
                    start, *ends = _split(fields, source, target)
                    found.setdefault(start, {}).update(dict.fromkeys(ends))
            except ValueError as error:
                if strict:
                    raise QkvError(f"line {lines}: {error}", path) from None
                bad.append(BadLine(lines, str(error)))
    if not found:
        first = f", of which {len(bad)} bad; line {bad[0].number}: {bad[0].reason}" if bad else ""
        raise QkvError(f"no pair among {lines} lines{first}", path)
    return Pairs(tuple(Pair(start, tuple(ends)) for start, ends in found.items()), tuple(bad))


def _lines(file: TextIO) -> Iterator[bytes | None]:
    """The lines, whether a newline, a carriage return or both end them; None for one that is too long."""
    while line := file.readline(LONGEST_LINE + 1):
        if line.endswith("\n") or len(line) <= LONGEST_LINE:
            yield line.encode("latin-1")
            continue
        while line and not line.endswith("\n"):
            line = file.readline(LONGEST_LINE)
        yield None


def _fields(line: bytes | None, *, first: bool) -> list[str]:
    """The fields of a line, none if it is blank; a ValueError says why it is bad."""
    if line is None:
        raise ValueError(f"longer than {LONGEST_LINE} bytes")
    try:
        # some editors put a mark before the first line
        text = line.decode("utf-8-sig" if first else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start + 1}") from None
    if "\0" in text:
        raise ValueError("a NUL character")
    if not text.strip(" "):
        return []
    if "\t" not in text:
        raise ValueError("no tab")
    return text.split("\t")


def _split(fields: list[str], source: str, target: str) -> Iterator[Tokens]:
    for place, text in enumerate(fields):
        tokens = _SPLIT[target if place else source](text)
        if not tokens:
            raise ValueError(f"target {place} is empty" if place else "the source is empty")
        yield tokens
