"""Warnings on stderr: those of the library as one sentence each, and one per input without an answer, up to a limit."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from qkv.cli.shared.stdin import warn
from qkv.errors import QkvWarning

MAX_WARNINGS = 20


@contextmanager
def printed_warnings() -> Iterator[None]:
    """Print each `QkvWarning` as a sentence, as errors are printed; others are printed by Python."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", QkvWarning)
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any) -> None:
            if issubclass(category, QkvWarning):
                warn(str(message))
            else:
                usual(message, category, *where)

        warnings.showwarning = show  # type: ignore[assignment]
        yield


class WarningLimit:
    """Warnings on stderr, of which only the first few are printed."""

    def __init__(self) -> None:
        self.printed = self.suppressed = 0

    def warn(self, message: str) -> None:
        """Print the warning, or count it if the limit is reached."""
        if self.printed < MAX_WARNINGS:
            self.printed += 1
            warn(message)
        else:
            self.suppressed += 1

    def print_suppressed(self, noun: str) -> None:
        """Print how many warnings were suppressed; `noun` names the inputs, such as words."""
        if self.suppressed:
            warn(f"{self.suppressed:,} more {noun} have no answer")
