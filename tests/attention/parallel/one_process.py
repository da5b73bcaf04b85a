"""A group of one process, in the process of the test."""

from contextlib import contextmanager

import torch.distributed as dist

from qkv.attention import SequenceGroup


@contextmanager
def one_process():
    """Yield the group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield SequenceGroup()
    finally:
        dist.destroy_process_group()
