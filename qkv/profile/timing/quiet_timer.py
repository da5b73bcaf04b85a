"""The time of a call when nothing disturbs it, on a machine that others use too."""

import time
from collections.abc import Callable

import torch

_BATCH = 1e-4  # seconds: shorter calls are timed several at once, for reading the clock takes time too
_SETTLING = 31 * 2**20  # bytes; the C library never keeps a block of 32 MB or more


def quiet_seconds(call: Callable[[], object], *, seconds: float = 0.03, least: int = 5) -> float:
    """The fastest of its repetitions: noise only adds.

    Where torch has one thread it is the processor's time, which stands still while others have the processor, and on an
    idle machine is the clock's. With more threads it is the clock's.
    """
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    call()
    started = time.perf_counter()
    call()
    once = time.perf_counter() - started
    batch = max(1, min(200, int(_BATCH / max(once, 1e-7))))
    times: list[float] = []
    ends = time.perf_counter() + seconds
    while len(times) < least or (time.perf_counter() < ends and len(times) < 200):
        began = clock()
        for _ in range(batch):
            call()
        times.append((clock() - began) / batch)
    return min(times)


def settle() -> None:
    """Bring the C library to where it keeps freed memory, as it does in a process that has run for a while.

    Before it has freed a large block, it hands every large one back, and fetching it anew, page by page, can take
    longer than the computation.
    """
    torch.zeros(_SETTLING, dtype=torch.uint8)
