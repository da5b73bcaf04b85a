"""Run a function on several Python threads, each with one torch thread.

Torch's own threads split every operation. Where operations are small, they mostly wait for each other. Threads that
each run a whole part meet only at the end.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from qkv.inference.progress import track

Part = TypeVar("Part")
Result = TypeVar("Result")


def map_threads(function: Callable[[Part], Result], parts: Sequence[Part], threads: int) -> list[Result]:
    """Return function(part) for each part, in order.

    Parts are started last to first: when the last ones are the largest, no thread finishes late. A single part runs on
    the calling thread, also with one torch thread. After an error or an interrupt no further part starts. The torch
    thread count is restored. Progress is reported, see `qkv.inference.progress`.
    """
    before, threads = torch.get_num_threads(), min(threads, len(parts))
    try:
        if threads <= 1:
            torch.set_num_threads(1)
            return [function(part) for part in track(parts)]
        pool = ThreadPoolExecutor(threads, "qkv", torch.set_num_threads, (1,))
        try:
            futures = [pool.submit(function, part) for part in reversed(parts)]
            return [future.result() for future in track(futures)][::-1]
        finally:
            pool.shutdown(cancel_futures=True)
    finally:
        torch.set_num_threads(before)  # for this thread, and for threads that start later
