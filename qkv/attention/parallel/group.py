"""The processes that share the tokens of each sequence, and the part of one of them.

SequenceGroup   the processes, in the order of their parts
SequencePart    the part of this process in one forward: how many tokens are before it, and after it
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from qkv.attention.parallel.exchange import bind, gather_integers, gather_tensors
from qkv.attention.parallel.summary import Summary

HEADER_BYTES = 16
"""Bytes that each process sends to each other one in `SequenceGroup.locate`."""


class SequenceGroup:
    """Processes that each hold one part of the time axis; the rank in the group is the index of the part.

    `group` is a group of torch.distributed (default: all processes). Parts may have different lengths, even 0.
    """

    def __init__(self, group: dist.ProcessGroup | None = None):
        if not dist.is_initialized():
            raise ValueError("a SequenceGroup needs processes: start them with torchrun and call init_process_group")
        self.process_group = group
        self.rank = dist.get_rank(group)
        self.parts = dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError("this process is not in the group; each process must use its own group")

    def __deepcopy__(self, _: dict[int, Any]) -> "SequenceGroup":
        return self  # connections cannot be copied

    def locate(self, length: int, device: torch.device, **given: object) -> "SequencePart | None":
        """Return the part of this process, with `length` tokens; None if there is only one process.

        The processes exchange their lengths, so all of them must call this. They must also agree on which arguments of
        their call are given, because these decide what is exchanged: one that only some have raises.
        """
        if self.parts == 1:
            return None
        code = sum(2**place for place, value in enumerate(given.values()) if value is not None)
        lengths, codes = gather_integers((length, code), self.process_group, device)
        for place, name in enumerate(given):
            having = [rank for rank, other in enumerate(codes) if other >> place & 1]
            if 0 < len(having) < self.parts:
                raise ValueError(f"{name} must be given by all processes of a sequence or by none, got it at {having}")
        return SequencePart(self, lengths)


@dataclass(frozen=True)
class SequencePart:
    """The tokens of this process among those of all."""

    group: SequenceGroup
    lengths: tuple[int, ...]
    """Tokens of each process."""

    @property
    def rank(self) -> int:
        """Index of this part."""
        return self.group.rank

    @property
    def offset(self) -> int:
        """Number of tokens before this part."""
        return sum(self.lengths[: self.rank])

    @property
    def length(self) -> int:
        """Number of tokens of this part."""
        return self.lengths[self.rank]

    @property
    def end(self) -> int:
        """Number of tokens up to the end of this part."""
        return self.offset + self.length

    @property
    def total(self) -> int:
        """Number of tokens of all parts."""
        return sum(self.lengths)

    def index(self, device: torch.device) -> Tensor:
        """Return the positions of the tokens of this part: (time,)."""
        return torch.arange(self.offset, self.end, device=device)

    def positions(self, mask: Tensor | None, device: torch.device) -> Tensor:
        """Return `index` or, with a mask, positions (batch, time) that do not count padding."""
        if mask is None:
            return self.index(device)
        (counts,), _ = self.gather((mask.sum(1),), causal=True)
        return (counts.sum(0)[:, None] + mask.cumsum(1) - 1).clamp(min=0)

    def gather(
        self, tensors: Sequence[Tensor], *, causal: bool
    ) -> tuple[tuple[Tensor, ...], Callable[[Tensor], Tensor]]:
        """Return the tensors of the parts before this one or, if not causal, of all: each (parts, *shape).

        All processes must give the same shapes. A result of this process must pass through the function returned: it
        makes this process take part in the backward of the exchange.
        """
        found = gather_tensors(tuple(tensors), self.group.process_group, causal=causal)
        return found, lambda x: bind(x, found)

    def gather_summaries(
        self, own: Summary, places: Callable[[int], int], *, causal: bool
    ) -> tuple[list[Summary], Callable[[Tensor], Tensor]]:
        """Return the summaries of the parts before this one or, if not causal, of all.

        `places` gives the entries of a part of some length in those tensors that have an entry for each token.
        """
        names, widest = sorted(own.tensors), places(max(self.lengths))
        padded = [_pad_end(own.tensors[name], own.place_axes.get(name), widest) for name in names]
        found, binding = self.gather(padded, causal=causal)
        others = []
        for slot, length in enumerate(self.lengths[: self.rank] if causal else self.lengths):
            tensors = {
                name: _keep(x[slot], own.place_axes.get(name), places(length))
                for name, x in zip(names, found, strict=True)
            }
            others.append(Summary(tensors, length, own.place_axes))
        return others, binding

    def extend(self, x: Tensor, before: int, after: int) -> Tensor:
        """Return x (batch, time, channels) with its neighbors: the last tokens before it and the first after it.

        Beyond the ends of the sequence they are zeros.
        """
        causal = not after
        ends = _last(x, before), _pad_end(x[:, :after], 1, after)
        (lasts, firsts), binding = self.gather(ends, causal=causal)
        left = [_keep_end(lasts[r], min(self.lengths[r], before)) for r in range(self.rank)]
        right = [firsts[r][:, : self.lengths[r]] for r in range(self.rank + 1, self.group.parts) if not causal]
        zeros = x.new_zeros(x.shape[0], 1, x.shape[2])
        past = torch.cat((zeros.expand(-1, before, -1), *left), 1)
        future = torch.cat((*right, zeros.expand(-1, after, -1)), 1)
        return binding(torch.cat((_keep_end(past, before), x, future[:, :after]), 1))


def _last(x: Tensor, count: int) -> Tensor:
    """Return the last `count` tokens of (batch, time, channels), with zeros in front if there are fewer."""
    kept = _keep_end(x, min(x.shape[1], count))
    return functional.pad(kept, (0, 0, count - kept.shape[1], 0))


def _keep_end(x: Tensor, count: int) -> Tensor:
    """Return the last `count` tokens of (batch, time, channels)."""
    return x[:, x.shape[1] - count :]


def _keep(x: Tensor, axis: int | None, count: int) -> Tensor:
    return x if axis is None else x.narrow(axis, 0, count)


def _pad_end(x: Tensor, axis: int | None, count: int) -> Tensor:
    """Pad this axis at its end to `count` entries."""
    if axis is None or x.shape[axis] == count:
        return x
    missing = [*x.shape]
    missing[axis] = count - x.shape[axis]
    return torch.cat((x, x.new_zeros(missing)), axis)
