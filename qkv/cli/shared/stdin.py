"""The lines of stdin, however long and whatever is in them, with a progress bar where somebody waits for it."""

import io
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LONGEST_LINE = 100_000
"""Bytes; a longer line is passed over and never read whole."""
BETWEEN_UPDATES = 256
SECONDS_BETWEEN_LINES = 10


def warn(message: str) -> None:
    """What a reader of lines has to tell."""
    sys.stderr.write(f"qkv: {message}\n")


def read_lines(tell: Callable[[str], None]) -> Iterator[str]:
    """Lines without their ends; bytes that are no UTF-8 become U+FFFD, and a line that is too long is told of."""
    with _progress() as update:
        size = 0
        for number, line in enumerate(_cut(), 1):
            if line is None:
                tell(f"line {number} is longer than {LONGEST_LINE:,} bytes and is passed over")
                continue
            size += len(line)
            if number % BETWEEN_UPDATES == 0:
                update(number, size)
            yield line.decode("utf-8", errors="replace").rstrip("\r\n").removeprefix("\ufeff")


def _cut() -> Iterator[bytes | None]:
    """The lines as bytes; None for one that is too long. A stdin that is closed has none."""
    file = io.BytesIO() if sys.stdin is None else sys.stdin.buffer
    while line := file.readline(LONGEST_LINE + 1):
        if line.endswith(b"\n") or len(line) <= LONGEST_LINE:
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(LONGEST_LINE)
        yield None


Update = Callable[[int, int], None]
"""(lines so far, bytes so far)"""


@contextmanager
def _progress() -> Iterator[Update]:
    """A bar on a terminal while stdout goes elsewhere; a line every ten seconds where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield _Lines()
    elif sys.stdout.isatty() or sys.stdin is None or sys.stdin.isatty():
        yield lambda number, size: None  # the answers themselves are the progress
    else:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

        from qkv.cli.shared.console import console

        columns = (TextColumn("{task.fields[lines]:,} lines"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        # rich would take stdout too, where the answers go
        with Progress(*columns, console=console(stderr=True), redirect_stdout=False) as bar:
            task = bar.add_task("", total=_size_of_stdin(), lines=0)
            yield lambda number, size: bar.update(task, completed=size, lines=number)


class _Lines:
    def __init__(self) -> None:
        self.last = time.monotonic()

    def __call__(self, number: int, size: int) -> None:
        if time.monotonic() - self.last > SECONDS_BETWEEN_LINES:
            self.last = time.monotonic()
            sys.stderr.write(f"qkv: {number:,} lines read\n")


def _size_of_stdin() -> int | None:
    """Bytes to come, where that is known: stdin is a file."""
    state = os.fstat(sys.stdin.fileno())
    return state.st_size if stat.S_ISREG(state.st_mode) else None
