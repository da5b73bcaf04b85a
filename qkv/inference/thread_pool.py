"""Parts of a job on several threads, each with one thread of torch's.

Torch's own threads split every operation, and where operations are small they mostly wait for each other; threads that
each do a part of the job meet only at its end.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Part = TypeVar("Part")
Result = TypeVar("Result")


def side_by_side(work: Callable[[Part], Result], parts: Sequence[Part], threads: int) -> list[Result]:
    """work(part) of each, in order; the last parts are begun first, so where they are the largest no thread ends late.

    A single part is done by the caller's thread, it too with one of torch's. After an error or an interrupt no further
    part is begun. Torch keeps the number of threads it had.
    """
    before, threads = torch.get_num_threads(), min(threads, len(parts))
    try:
        if threads <= 1:
            torch.set_num_threads(1)
            return [work(part) for part in parts]
        pool = ThreadPoolExecutor(threads, "qkv", torch.set_num_threads, (1,))
        try:
            return [waiting.result() for waiting in [pool.submit(work, part) for part in reversed(parts)]][::-1]
        finally:
            pool.shutdown(cancel_futures=True)
    finally:
        torch.set_num_threads(before)  # here, and for threads that begin later
