"""The sentence and the exit code of an error."""

import sys
import traceback
from pathlib import Path

from qkv.cli.shared.visible import visible
from qkv.errors import QkvError, is_out_of_memory

WRONG_USE, BUG = 2, 1
NOTE = "rank "
"""Start of the notes that are printed."""
MAX_CHARACTERS = 1000
"""Longest sentence; the middle of a longer one is left out."""
PACKAGE = Path(__file__).parent.parent.parent


def describe_error(error: Exception) -> tuple[str, int]:
    """Return what went wrong, as a sentence for a terminal, and the exit code: 2 for wrong use, 1 for a bug in qkv.

    A note on the error that says where it happened, such as the rank of the process, comes first.
    """
    sentence, code = _describe(error)
    notes = [note for note in getattr(error, "__notes__", []) if note.startswith(NOTE)]
    return ": ".join([*notes, sentence]), code


def _describe(error: Exception) -> tuple[str, int]:
    if isinstance(error, UnicodeEncodeError) and (argument := _surrogate_argument()):
        return f"the argument {argument!a:.100} is not valid UTF-8", WRONG_USE
    if isinstance(error, QkvError | ValueError | TypeError | OverflowError | OSError):
        return _shorten(visible(str(error))), WRONG_USE
    if is_out_of_memory(error):
        return f"there is not enough memory for this ({_first_line(error)})", WRONG_USE
    if type(error).__name__ == "SafetensorError":
        return f"a file of weights is damaged ({_first_line(error)})", WRONG_USE
    if isinstance(error, RecursionError):
        return f"the input is nested too deep ({_first_line(error)})", WRONG_USE
    problem = f"{type(error).__name__}: {_first_line(error)}"
    return f"this is a bug in qkv: {problem}{_place(error)}; QKV_TRACEBACK=1 shows where it comes from", BUG


def _place(error: Exception) -> str:
    """Return the file and line of the package where the error was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if PACKAGE in Path(frame.filename).parents]
    return f" ({Path(ours[-1].filename).relative_to(PACKAGE.parent)}:{ours[-1].lineno})" if ours else ""


def _surrogate_argument() -> str:
    """Return the first argument that is not valid UTF-8; Python replaces such bytes by surrogates."""
    return next((text for text in sys.argv[1:] if any("\ud800" <= sign <= "\udfff" for sign in text)), "")


def _first_line(error: Exception) -> str:
    return _shorten(visible((str(error).strip().splitlines() or [type(error).__name__])[0]))


def _shorten(text: str) -> str:
    half = MAX_CHARACTERS // 2
    return text if len(text) <= MAX_CHARACTERS else f"{text[:half]} ... {text[-half:]}"
