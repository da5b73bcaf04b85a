"""Time a call as if nothing disturbed it, on a machine that others use too."""

import time
from collections.abc import Callable

import torch

_MIN_TIMED_SECONDS = 1e-4  # shorter calls are timed in batches, since reading the clock takes time too
_LARGE_BLOCK_BYTES = 31 * 2**20  # the C library never keeps a freed block of 32 MiB or more
_MAX_REPEATS = 200


def fastest_seconds(call: Callable[[], object], *, seconds: float = 0.03, min_repeats: int = 5) -> float:
    """Return the time of the fastest repetition: noise only adds.

    With one torch thread this is processor time, which does not advance while other processes run, and on an
    idle machine equals the wall clock. With more threads it is the wall clock.
    """
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    call()
    started = time.perf_counter()
    call()
    once = time.perf_counter() - started
    batch = max(1, min(_MAX_REPEATS, int(_MIN_TIMED_SECONDS / max(once, 1e-7))))
    times: list[float] = []
    deadline = time.perf_counter() + seconds
    while len(times) < min_repeats or (time.perf_counter() < deadline and len(times) < _MAX_REPEATS):
        began = clock()
        for _ in range(batch):
            call()
        times.append((clock() - began) / batch)
    return min(times)


def warm_allocator() -> None:
    """Make the C library keep freed memory, as it does in a process that has run for a while.

    Until a large block has been freed, every large block goes back to the system, and fetching it again, page
    by page, can take longer than the computation.
    """
    torch.zeros(_LARGE_BLOCK_BYTES, dtype=torch.uint8)
