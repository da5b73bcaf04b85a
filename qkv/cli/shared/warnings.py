"""Print a warning per input that has no answer, up to a limit; count the rest."""

from qkv.cli.shared.stdin import warn

MAX_WARNINGS = 20


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
