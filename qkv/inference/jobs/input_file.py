"""A large text file in pieces: piece k begins at line k * part_lines.

The file is read once as a stream to find where the pieces begin. It is never held in memory, and each process reads the
pieces that it predicts.
"""

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from qkv.errors import QkvError
from qkv.storage import open_file
from qkv.storage.lines import MAX_LINE_BYTES, MAX_SKIPPED_BYTES, decode_line, long_line_error, read_lines

CHUNK_BYTES = 2**20
"""Bytes that are read at once to find the pieces."""


class InputLine(NamedTuple):
    """A line of the input: its number from 1, its text, and why it is no input."""

    number: int
    text: str
    error: str | None


@dataclass(frozen=True)
class LineIndex:
    """Size, time and checksum of a file, and where its pieces begin."""

    bytes: int
    modified: int
    """Time of the last change, in nanoseconds."""
    sha256: str
    lines: int
    part_lines: int
    """Lines of each piece but the last."""
    offsets: list[int]
    """First byte of each piece."""

    def piece_lines(self, piece: int) -> int:
        """Return the number of lines of a piece."""
        return min(self.part_lines, self.lines - piece * self.part_lines)

    def is_current(self, path: Path) -> bool:
        """Return whether the file has the size and the time that it had when it was indexed."""
        with open_file(path) as file:
            return _size_and_time(file) == (self.bytes, self.modified)

    def to_record(self) -> dict[str, Any]:
        """Return the index as plain data."""
        return asdict(self)


def index_lines(path: Path, part_lines: int) -> LineIndex:
    """Read a file as a stream and return its index; a last line without an end is a line too."""
    if part_lines < 1:
        raise ValueError(f"part_lines must be at least 1, got {part_lines}")
    digest, offsets, lines, read, line_start = sha256(), [0], 0, 0, 0
    with open_file(path) as file:
        before = _size_and_time(file)
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            ends = np.flatnonzero(np.frombuffer(chunk, np.uint8) == ord("\n")) + (read + 1)
            offsets += ends[(-lines - 1) % part_lines :: part_lines].tolist()
            lines, read = lines + len(ends), read + len(chunk)
            starts = np.concatenate([[line_start], ends])
            line_start = int(starts[-1])
            if np.diff(starts, append=read).max() > MAX_SKIPPED_BYTES:
                raise long_line_error(path)
        if _size_and_time(file) != before or read != before[0]:
            raise _changed_error(path)
    lines += line_start < read
    return LineIndex(*before, digest.hexdigest(), lines, part_lines, [offset for offset in offsets if offset < read])


class InputFile:
    """An indexed file; a change of it while a job runs is an error."""

    def __init__(self, path: Path, index: LineIndex):
        self.path, self.index = path, index

    @property
    def pieces(self) -> int:
        """Number of pieces."""
        return len(self.index.offsets)

    def read_piece(self, piece: int) -> Iterator[InputLine]:
        """Yield the lines of a piece, as `qkv predict` reads them from stdin; one that is too long has an error."""
        first = piece * self.index.part_lines + 1
        with open_file(self.path) as file:
            if _size_and_time(file) != (self.index.bytes, self.index.modified):
                raise _changed_error(self.path)
            file.seek(self.index.offsets[piece])
            lines = islice(read_lines(file, MAX_LINE_BYTES, self.path), self.index.piece_lines(piece))
            for number, line in enumerate(lines, first):
                if line is None:
                    yield InputLine(number, "", f"line {number} is longer than {MAX_LINE_BYTES:,} bytes")
                else:
                    yield InputLine(number, decode_line(line), None)


def _size_and_time(file: BufferedReader) -> tuple[int, int]:
    found = os.fstat(file.fileno())
    return found.st_size, found.st_mtime_ns


def _changed_error(path: Path) -> QkvError:
    return QkvError(f"{path.name} was changed while it was read; put it back, or start a new job", path.parent)
