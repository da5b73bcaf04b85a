"""Work in several processes that are connected by gloo, and the bytes that they exchange."""

import json
from contextlib import contextmanager
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import multiprocessing


def launch(work, processes, folder, *given):
    """Return the results of work(*given) in each process, in the order of ranks; they must be JSON."""
    multiprocessing.spawn(_run, args=(processes, str(folder), work, given), nprocs=processes)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(processes)]


def _run(rank, processes, folder, work, given):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=processes)
    try:
        found = work(*given)
    finally:
        dist.destroy_process_group()
    with open(f"{folder}/{rank}.json", "w") as file:
        json.dump(found, file)


@contextmanager
def received_bytes():
    """Yield the list of the bytes that this process receives from others, one entry per collective call."""
    counts, gather, exchange = [], dist.all_gather_single, dist.all_to_all_single

    def all_gather(received, sent, **options):
        counts.append(received.nbytes - sent.nbytes)
        return gather(received, sent, **options)

    def all_to_all(received, sent, from_each, to_each, **options):
        counts.append(received.element_size() * (sum(from_each) - from_each[dist.get_rank()]))
        return exchange(received, sent, from_each, to_each, **options)

    with patch.object(dist, "all_gather_single", all_gather), patch.object(dist, "all_to_all_single", all_to_all):
        yield counts
