"""A sentence for each input that has no answer, up to a number; after that they are counted."""

from qkv.cli.shared.stdin import warn

MOST = 20


class Complaints:
    """What is told on stderr while the rest is answered."""

    def __init__(self) -> None:
        self.told = self.untold = 0

    def tell(self, sentence: str) -> None:
        """Say it, or count it."""
        if self.told < MOST:
            self.told += 1
            warn(sentence)
        else:
            self.untold += 1

    def finish(self, what: str) -> None:
        """How many there were beyond those that were told; `what` they are, such as words."""
        if self.untold:
            warn(f"{self.untold:,} more {what} have no answer")
