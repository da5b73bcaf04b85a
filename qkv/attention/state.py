"""Decoding states as values: select, fork, join, move, write to a file.

A state holds one row per sequence. Rows of different lengths can stand side by side: they end at the same place, and
the shorter ones begin with padding.

    long   a b c d e f
    short  . . . . g h        offset 4: its token g is at place 4 of the state, and at position 0 of its sequence
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from qkv.shapes import Rows

Same = TypeVar("Same", bound="StateValue")


class StateValue(ABC):
    """A state of some sequences, one row each. A class that writes `tensors` and `with_tensors` can be saved."""

    @abstractmethod
    def select(self: Same, rows: Rows) -> Same:
        """Return the state of these batch rows, in this order, as a copy; beam search reorders with it."""

    def tensors(self) -> dict[str, Tensor]:
        """Return all that the state holds, by name; integers are tensors without axes."""
        raise self._unsupported("tensors")

    def with_tensors(self: Same, tensors: Mapping[str, Tensor]) -> Same:
        """Return a state of the same class and options that holds these tensors; raise KeyError for a missing one."""
        raise self._unsupported("with_tensors")

    def join(self: Same, *others: Same) -> Same:
        """Return one state of all rows, first those of this one; shorter sequences get padding in front."""
        raise self._unsupported("join")

    def put(self: Same, rows: Rows, other: Same) -> Same:
        """Write all rows of `other` over these rows, in place: only the returned state can be continued."""
        raise self._unsupported("put")

    def drop_places(self: Same, count: int) -> Same:
        """Return the state without its first `count` places, which must be padding in every row."""
        raise self._unsupported("drop_places")

    @property
    def rewindable(self) -> int:
        """Largest count that `rewind` takes; 0 for sums, from which no token can be taken back."""
        return 0

    @property
    def place_axes(self) -> Mapping[str, int]:
        """Names of the `tensors` with an entry for each token, and the axis.

        Such a tensor after a prefix of the tokens is the beginning of the one after all.
        """
        return {}

    def rewind(self: Same, count: int) -> Same:
        """Return the state without its last `count` tokens.

        KV caches can, until a window drops keys, and with an undo log (`DecoderState.with_undo_log`) every kind.
        Otherwise keep a `fork` of the earlier state. This state cannot be used any more.
        """
        self._require_rewindable(count)
        return self

    def settled(self: Same) -> Same:
        """Return the state in the memory layout that `with_tensors` gives, so that both continue with the same bits."""
        return self

    def fork(self: Same, copies: int = 1) -> Same:
        """Return a copy with each row `copies` times in a row; both states can be continued."""
        if copies < 1:
            raise ValueError(f"copies must be at least 1, got {copies}")
        first = next(x for x in self.tensors().values() if x.dim())
        return self.select(torch.arange(first.shape[0], device=first.device).repeat_interleave(copies))

    def to(self: Same, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Same:
        """Return the state on this device, with its floating-point tensors in this dtype (default: as they are)."""
        moved = {name: x.to(device, dtype if x.is_floating_point() else None) for name, x in self.tensors().items()}
        return self.with_tensors(moved)

    def _require_rewindable(self, count: int) -> None:
        """Raise unless `count` tokens can be taken back."""
        if not 0 <= count <= self.rewindable:
            raise ValueError(
                f"count={count} tokens cannot be taken back from this {type(self).__name__}, only 0 to "
                f"{self.rewindable}; keep a fork of the earlier state, or decode with an undo log"
            )

    def _unsupported(self, method: str) -> NotImplementedError:
        return NotImplementedError(f"a state of class {type(self).__name__} does not support this; write its {method}")


def join_rows(name: str, tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate along the batch axis; raise unless everything else agrees."""
    first = tensors[0]
    for other in tensors[1:]:
        if other.shape[1:] != first.shape[1:] or other.dtype != first.dtype or other.device != first.device:
            raise ValueError(
                f"states cannot be joined: {name} of one has shape {tuple(first.shape)}, {first.dtype} on "
                f"{first.device}, that of another {tuple(other.shape)}, {other.dtype} on {other.device}"
            )
    return torch.cat(list(tensors))


def pad_front(x: Tensor, axis: int, size: int) -> Tensor:
    """Return `x` with zeros (False) in front, so that this axis has `size` places."""
    missing = size - x.shape[axis]
    return x if missing == 0 else functional.pad(x, (0, 0) * (x.dim() - 1 - axis) + (missing, 0))


def join_offsets(offsets: Sequence[Rows | None], lengths: Sequence[int], rows: Sequence[int]) -> Rows | None:
    """Return the offset of each row of the joined state, which is as long as the longest; None if all are 0."""
    longest = max(lengths)
    parts = [
        torch.full((count,), longest - length) + (0 if own is None else own.cpu())
        for own, length, count in zip(offsets, lengths, rows, strict=True)
    ]
    joined = torch.cat(parts)
    device = next((own.device for own in offsets if own is not None), torch.device("cpu"))
    return joined.to(device) if bool(joined.any()) else None


def put_offsets(offsets: Sequence[Rows | None], lengths: Sequence[int], held: int, rows: Rows) -> Rows | None:
    """Return the offsets of a state of `held` rows after those of a second state were written over `rows`."""
    joined = join_offsets(offsets, lengths, (held, len(rows)))
    if joined is None:
        return None
    written = joined[:held].clone()
    written[rows] = joined[held:]
    return written if bool(written.any()) else None


def with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors under `prefix.name`."""
    return {f"{prefix}.{name}": x for name, x in tensors.items()}


def under_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names start with `prefix.`, without it."""
    return {name.removeprefix(f"{prefix}."): x for name, x in tensors.items() if name.startswith(f"{prefix}.")}
