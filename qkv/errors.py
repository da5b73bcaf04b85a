"""Errors of the library: `QkvError` for files and runs, `ValueError` for an unknown name; `QkvWarning`."""

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path


class QkvError(Exception):
    """A problem with a file or a run: what is wrong, where, and the nearest valid name, in one sentence."""

    def __init__(self, what: str, where: str | Path = "", nearest: str = ""):
        super().__init__(what, where, nearest)
        self.what = what
        self.where = where
        self.nearest = nearest

    def __str__(self) -> str:
        where = f", in {self.where}" if str(self.where) else ""
        hint = f"; did you mean {self.nearest}?" if self.nearest else ""
        return self.what + where + hint


class QkvWarning(UserWarning):
    """A sentence about a run that can be used, but not as its user may expect; the command line prints it."""


def unknown_name_error(what: str, name: object, names: Iterable[str]) -> ValueError:
    """Return the error for an unknown name, with the nearest valid name and the list of all of them."""
    names = sorted(names)
    nearest = get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    return ValueError(f"unknown {what} {name!r}{hint} (there are: {', '.join(names)})")
