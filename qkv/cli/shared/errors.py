"""The sentence and the exit code of an error."""

import sys
import traceback
from pathlib import Path

from qkv.cli.shared.visible import visible
from qkv.errors import QkvError

WRONG_USE, BUG = 2, 1
MAX_CHARACTERS = 1000
"""Longest sentence; the middle of a longer one is left out."""
PACKAGE = Path(__file__).parent.parent.parent


def describe_error(error: Exception) -> tuple[str, int]:
    """Return what went wrong, as a sentence for a terminal, and the exit code: 2 for wrong use, 1 for a bug in qkv."""
    if isinstance(error, UnicodeEncodeError) and (argument := _surrogate_argument()):
        return f"the argument {argument!a:.100} is not valid UTF-8", WRONG_USE
    if isinstance(error, QkvError | ValueError | TypeError | OverflowError | OSError):
        return _shorten(visible(str(error))), WRONG_USE
    if _is_out_of_memory(error):
        return f"there is not enough memory for this ({_first_line(error)})", WRONG_USE
    if type(error).__name__ == "SafetensorError":
        return f"a file of weights is damaged ({_first_line(error)})", WRONG_USE
    if isinstance(error, RecursionError):
        return f"the input is nested too deep ({_first_line(error)})", WRONG_USE
    problem = f"{type(error).__name__}: {_first_line(error)}"
    return f"this is a bug in qkv: {problem}{_place(error)}; QKV_TRACEBACK=1 shows where it comes from", BUG


def _is_out_of_memory(error: Exception) -> bool:
    """Return whether memory ran out: torch raises a plain RuntimeError on a CPU, OutOfMemoryError on a GPU."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


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
