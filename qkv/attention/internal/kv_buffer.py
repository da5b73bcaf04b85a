"""The preallocated memory of a KV cache, and which states may still read it after tokens were taken back.

    s1 (5 tokens)  -> step ->  s2 (6)  -> rewind 3 ->  s3 (3)  -> step ->  s4 (4)
                                                                  writes over the keys 4 to 6 of s1 and s2

Each rewind begins an era of the buffer. A state of an earlier era is intact if no rewind since went below its end.
"""

import torch
from torch import Tensor


class KVBuffer:
    """Keys and values with free places behind the cached ones; the states of one generation share it."""

    def __init__(self, keys: Tensor, values: Tensor, capacity: int):
        self.keys = _move(keys, capacity)
        self.values = _move(values, capacity)
        self.shared = False
        """Whether tensors of the buffer were handed out, so that it must not be written over."""
        self._rewinds: list[int] = []

    @property
    def capacity(self) -> int:
        """Number of places."""
        return self.keys.shape[2]

    @property
    def era(self) -> int:
        """Number of rewinds so far."""
        return len(self._rewinds)

    def write(self, k: Tensor, v: Tensor, start: int) -> None:
        """Write keys and values to the places from `start` on."""
        end = start + k.shape[2]
        self.keys[:, :, start:end] = k
        self.values[:, :, start:end] = v

    def rewind(self, end: int) -> None:
        """Allow the places from `end` on to be written again."""
        self._rewinds.append(end)

    def is_intact(self, era: int, end: int) -> bool:
        """Return whether a state of this era, which reads the places before `end`, still finds its own there."""
        return era == self.era or min(self._rewinds[era:]) >= end


def _move(x: Tensor, capacity: int) -> Tensor:
    """Return a copy of x (batch, heads, time, dim) with room for `capacity` tokens."""
    buffer = torch.empty(*x.shape[:2], capacity, x.shape[3], dtype=x.dtype, device=x.device)
    buffer[:, :, : x.shape[2]] = x
    return buffer
