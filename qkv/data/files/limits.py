"""Limits of data files: a file may claim any size, so claims are compared with the file before memory is taken."""

import os

from qkv.errors import QkvError

MAX_BYTES = 4 * 2**30
"""Most bytes of an array or an archive member, unpacked; the environment variable QKV_MAX_BYTES changes it."""
MAX_LINE_BYTES = 100_000
"""Longest line of a table of pairs; a longer one is malformed and is never held in memory."""
MAX_CLASSES = 10_000
"""Most classes; a model has an output for each number up to the largest label."""


def max_bytes() -> int:
    """Return the most bytes that are unpacked from a file."""
    chosen = os.environ.get("QKV_MAX_BYTES", "")
    if chosen and not chosen.isdecimal():
        raise QkvError(f"QKV_MAX_BYTES must be a number of bytes, got {chosen[:40]!r}")
    return int(chosen[:18]) if chosen else MAX_BYTES


def require_size(name: str, size: int, where: object) -> None:
    """Raise if an array has more bytes than are unpacked."""
    if size > max_bytes():
        raise QkvError(
            f"{name} has {size:,} bytes unpacked, but at most {max_bytes():,} are read; "
            "the environment variable QKV_MAX_BYTES raises the limit",
            str(where),
        )
