"""Errors of the library: `QkvError` for files and runs, `ValueError` for an unknown name; `QkvWarning`."""

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path, PurePath


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


def nearest_name(name: str, names: Iterable[str]) -> str:
    """Return the most similar name, or "" if none is close: at most two edits per five characters.

    An edit inserts, removes or replaces a character, or swaps two neighbors. The extension of a file does not count.
    """
    for found in get_close_matches(name, list(names), n=3, cutoff=0.5):
        a, b = name.lower(), found.lower()
        if PurePath(a).suffix == PurePath(b).suffix:
            a, b = PurePath(a).stem, PurePath(b).stem
        if _edits(a, b) <= 2 * max(len(a), len(b)) // 5:
            return found
    return ""


def _edits(a: str, b: str) -> int:
    """Return the number of edits between two words (optimal string alignment)."""
    rows = [list(range(len(b) + 1))]
    for i, x in enumerate(a, 1):
        row = [i]
        for j, y in enumerate(b, 1):
            best = min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (x != y))
            if i > 1 and j > 1 and (x, a[i - 2]) == (b[j - 2], y):
                best = min(best, rows[-2][j - 2] + 1)
            row.append(best)
        rows.append(row)
    return rows[-1][-1]


def unknown_name_error(what: str, name: object, names: Iterable[str]) -> ValueError:
    """Return the error for an unknown name, with the nearest valid name and the list of all of them."""
    names = sorted(names)
    nearest = nearest_name(str(name), names)
    hint = f"; did you mean {nearest!r}?" if nearest else ""
    return ValueError(f"unknown {what} {name!r}{hint} (there are: {', '.join(names)})")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out: torch raises a plain RuntimeError on a CPU, OutOfMemoryError on a GPU."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
