"""Lines of a file, of which none is held in memory that is too long."""

from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

from qkv.errors import QkvError

MAX_LINE_BYTES = 100_000
"""Longest line that can be the input of a model."""
MAX_SKIPPED_BYTES = 64 * 2**20
"""Longest line that can be skipped; a file with a longer one is no text."""


def read_lines(file: BufferedReader, max_bytes: int, path: Path) -> Iterator[bytes | None]:
    """Yield the lines with their ends; None for one that is longer than `max_bytes`."""
    while line := file.readline(max_bytes + 1):
        if line.endswith(b"\n") or len(line) <= max_bytes:
            yield line
            continue
        skipped = len(line)
        while line and not line.endswith(b"\n"):
            line = file.readline(MAX_SKIPPED_BYTES // 64)
            skipped += len(line)
            if skipped > MAX_SKIPPED_BYTES:
                raise long_line_error(path)
        yield None


def decode_line(line: bytes) -> str:
    """Return the text of a line without its end or a byte order mark; invalid UTF-8 becomes U+FFFD."""
    return line.decode("utf-8", errors="replace").rstrip("\r\n").removeprefix("\ufeff")


def long_line_error(path: Path) -> QkvError:
    """Return the error for a file with a line that is too long to be skipped."""
    return QkvError(f"a line is longer than {MAX_SKIPPED_BYTES:,} bytes, so this is not a text file", path)
