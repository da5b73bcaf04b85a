"""Size limits of data files. The size in a file's header may be wrong, so it is checked before memory is allocated."""

import os

from qkv.errors import QkvError

MAX_BYTES = 4 * 2**30
"""Maximum unpacked size of an array or archive member; the environment variable QKV_MAX_BYTES changes it."""
MAX_LINE_BYTES = 100_000
"""Longest line of a table of pairs; a longer one is malformed and is never held in memory."""
MAX_CLASSES = 10_000
"""Maximum number of classes: a model has an output for each number up to the largest label."""


def max_bytes() -> int:
    """Return the maximum number of bytes to unpack from a file: QKV_MAX_BYTES, or MAX_BYTES."""
    chosen = os.environ.get("QKV_MAX_BYTES", "")
    if chosen and not chosen.isdecimal():
        raise QkvError(f"QKV_MAX_BYTES must be a number of bytes, got {chosen[:40]!r}")
    return int(chosen[:18]) if chosen else MAX_BYTES


def require_size(name: str, size: int, where: object) -> None:
    """Raise if an array of `size` bytes exceeds `max_bytes()`."""
    if size > max_bytes():
        raise QkvError(
            f"{name} has {size:,} bytes unpacked, but at most {max_bytes():,} are read; "
            "the environment variable QKV_MAX_BYTES raises the limit",
            str(where),
        )
