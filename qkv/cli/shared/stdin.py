"""Read lines of stdin, robust to long lines and invalid bytes, with a progress bar on a terminal."""

import io
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from qkv.cli.shared.visible import visible
from qkv.storage.lines import MAX_LINE_BYTES, decode_line

LINES_PER_UPDATE = 256
REPORT_SECONDS = 10


def warn(message: str) -> None:
    """Print a warning on stderr."""
    sys.stderr.write(f"qkv: {visible(message)}\n")


def read_lines(report: Callable[[str], None]) -> Iterator[str]:
    """Yield lines without line ends; invalid UTF-8 becomes U+FFFD, and lines that are too long are reported."""
    with _progress() as update:
        size = 0
        for number, line in enumerate(_read_raw_lines(), 1):
            if line is None:
                report(f"line {number} is longer than {MAX_LINE_BYTES:,} bytes and is skipped")
                continue
            size += len(line)
            if number % LINES_PER_UPDATE == 0:
                update(number, size)
            yield decode_line(line)


def _read_raw_lines() -> Iterator[bytes | None]:
    """Yield the lines as bytes, None for one that is too long; nothing if stdin is closed."""
    file = io.BytesIO() if sys.stdin is None else sys.stdin.buffer
    while line := file.readline(MAX_LINE_BYTES + 1):
        if line.endswith(b"\n") or len(line) <= MAX_LINE_BYTES:
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(MAX_LINE_BYTES)
        yield None


Update = Callable[[int, int], None]
"""(lines read, bytes read)"""


@contextmanager
def _progress() -> Iterator[Update]:
    """Show a bar if stderr is a terminal and stdout is not; print a line every ten seconds if stderr is not one."""
    if not sys.stderr.isatty():
        yield _LineCountReport()
    elif sys.stdout.isatty() or sys.stdin is None or sys.stdin.isatty():
        yield lambda number, size: None  # the output is the progress
    else:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

        from qkv.cli.shared.console import console

        columns = (TextColumn("{task.fields[lines]:,} lines"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        # rich would redirect stdout too, which carries the output
        with Progress(*columns, console=console(stderr=True), redirect_stdout=False) as bar:
            task = bar.add_task("", total=_size_of_stdin(), lines=0)
            yield lambda number, size: bar.update(task, completed=size, lines=number)


class _LineCountReport:
    """Prints the number of lines read every few seconds."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def __call__(self, number: int, size: int) -> None:
        if time.monotonic() - self.last > REPORT_SECONDS:
            self.last = time.monotonic()
            sys.stderr.write(f"qkv: {number:,} lines read\n")


def _size_of_stdin() -> int | None:
    """Return the size of stdin in bytes if it is a file."""
    state = os.fstat(sys.stdin.fileno())
    return state.st_size if stat.S_ISREG(state.st_mode) else None
