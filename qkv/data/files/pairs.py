"""Sequence pairs, one source and its accepted targets, from a tab-separated file.

    source TAB target [TAB target ...]

Lines with the same source become one pair with several targets.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

from qkv.data.files.limits import MAX_LINE_BYTES
from qkv.errors import QkvError, unknown_name_error
from qkv.storage import open_file
from qkv.storage.lines import MAX_SKIPPED_BYTES

Tokens = tuple[str, ...]

_SPLITTERS: dict[str, Callable[[str], Tokens]] = {
    "characters": lambda text: tuple(text.strip()),
    "words": lambda text: tuple(text.split()),
}

_SOURCE_NAMES = frozenset(("source", "src", "input", "word", "grapheme", "graphemes", "text", "question"))
_TARGET_NAMES = frozenset(
    (
        "target",
        "tgt",
        "output",
        "pronunciation",
        "phoneme",
        "phonemes",
        "phones",
        "ipa",
        "translation",
        "answer",
        "label",
    )
)
"""Names that a header gives the column of sources and the first column of targets, in lower case."""


@dataclass(frozen=True)
class Pair:
    """A source and all its correct targets, at least one."""

    source: Tokens
    targets: tuple[Tokens, ...]


@dataclass(frozen=True)
class MalformedLine:
    """Number of a line that is not a pair, from 1, and the reason."""

    number: int
    reason: str


@dataclass(frozen=True)
class PairFile:
    """Contents of a file: pairs in the order in which their sources first occur, and malformed lines."""

    pairs: tuple[Pair, ...]
    bad_lines: tuple[MalformedLine, ...]
    header: tuple[str, ...] = ()
    """Fields of the first line if that is a header."""


def read_pairs(
    path: Path | str,
    *,
    source: str = "characters",
    target: str = "words",
    strict: bool = False,
    header: bool | None = None,
) -> PairFile:
    """Read a file of pairs; each side is split into its "characters" or its "words".

    Blank lines and repeated targets are dropped. Malformed lines are collected; with `strict` the first one raises.
    With `header` the first line is left out; None: if it names columns, such as `source TAB target`.
    """
    path = Path(path)
    for side, unit in (("source", source), ("target", target)):
        if unit not in _SPLITTERS:
            raise unknown_name_error(f"{side} unit", unit, _SPLITTERS)
    found: dict[Tokens, dict[Tokens, None]] = {}
    bad: list[MalformedLine] = []
    names: tuple[str, ...] = ()
    lines = 0
    # latin-1 keeps every byte, so that invalid UTF-8 is reported per line
    with TextIOWrapper(open_file(path), "latin-1") as file:
        for lines, line in enumerate(read_lines(file, path), 1):
            try:
                fields = _parse_fields(line, first=lines == 1)
                if lines == 1 and fields and (header or (header is None and _names_columns(fields))):
                    names = tuple(field.strip() for field in fields)
                elif fields:
                    start, *ends = _tokenize_fields(fields, source, target)
                    found.setdefault(start, {}).update(dict.fromkeys(ends))
            except ValueError as error:
                if strict:
                    raise QkvError(f"line {lines}: {error}", path) from None
                bad.append(MalformedLine(lines, str(error)))
    if not found:
        first = f", {len(bad)} of them malformed; line {bad[0].number}: {bad[0].reason}" if bad else ""
        raise QkvError(f"no pair among {lines} lines{first}", path)
    return PairFile(tuple(Pair(start, tuple(ends)) for start, ends in found.items()), tuple(bad), names)


def _names_columns(fields: list[str]) -> bool:
    """Return whether the first two fields are usual names of the columns of sources and targets."""
    first, second = (field.strip().lower() for field in fields[:2])
    return first in _SOURCE_NAMES and second in _TARGET_NAMES


def read_lines(file: TextIO, path: Path) -> Iterator[bytes | None]:
    """Yield lines ended by a newline, a carriage return or both; None for one that is too long."""
    while line := file.readline(MAX_LINE_BYTES + 1):
        if line.endswith("\n") or len(line) <= MAX_LINE_BYTES:
            yield line.encode("latin-1")
            continue
        skipped = 0
        while line and not line.endswith("\n"):
            line = file.readline(MAX_LINE_BYTES)
            skipped += len(line)
            if skipped > MAX_SKIPPED_BYTES:
                raise QkvError(f"a line is longer than {MAX_SKIPPED_BYTES:,} bytes: this is not a text file", path)
        yield None


def _parse_fields(line: bytes | None, *, first: bool) -> list[str]:
    """Return the fields of a line, an empty list if it is blank; raise ValueError if it is malformed."""
    if line is None:
        raise ValueError(f"longer than {MAX_LINE_BYTES} bytes")
    text = decode_line(line, first=first)
    if not text.strip(" "):
        return []
    if "\t" not in text:
        raise ValueError("no tab")
    return text.split("\t")


def decode_line(line: bytes, *, first: bool) -> str:
    """Return a line without its end; raise ValueError if it is no text."""
    try:
        # some editors write a byte order mark at the start of a file
        text = line.decode("utf-8-sig" if first else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start + 1}") from None
    if "\0" in text:
        raise ValueError("a NUL character")
    return text


def _tokenize_fields(fields: list[str], source: str, target: str) -> Iterator[Tokens]:
    for column, text in enumerate(fields):
        tokens = _SPLITTERS[target if column else source](text)
        if not tokens:
            raise ValueError(f"target {column} is empty" if column else "the source is empty")
        yield tokens
