"""Bound what native libraries keep, so that the memory of a server does not grow with the requests that it has seen.

oneDNN, and torch's layer above it, compile a product for each number of rows, and keep up to 1,024 of them each. Steps
of a server differ in their rows, so these caches would grow for hours. glibc gives each thread an arena of its own;
what one thread has freed there is of no use to another.
"""

import ctypes
import os
from contextlib import suppress

COMPILED_PRODUCTS = 64
"""Entries of each cache: the layers of a model share theirs, so there is room for a dozen numbers of rows."""
CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""Environment variables that both libraries read at their first product."""
ARENAS = "MALLOC_ARENA_MAX"
M_ARENA_MAX = -8


def give_back_memory() -> None:
    """Return what is free to the system: between blocks in use, glibc would keep it."""
    with suppress(AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def bound_native_memory() -> None:
    """Set the bounds for this process, before its first product; what the user has set stays."""
    for name in CACHES:
        os.environ.setdefault(name, str(COMPILED_PRODUCTS))
    if ARENAS not in os.environ:
        with suppress(AttributeError):  # another C library
            ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)
