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

from qkv.attention.internal.precision import upcast_dtype
from qkv.shapes import Mask, Rows

Same = TypeVar("Same", bound="StateValue")
Ragged = TypeVar("Ragged", bound="RaggedState")

SUMS = frozenset({"kv_sum", "k_sum"})
"""Names of tensors that accumulate: at least float32 in a state of any dtype."""
FIXED = frozenset({"decay_sums"})
"""Names of tensors that keep their dtype."""


class StateValue(ABC):
    """A state of some sequences, one row each. A class that writes `tensors` and `with_tensors` can be saved.

    Every method but `rewind` returns a state that can be continued whatever happens to this one.
    """

    @property
    def rows(self) -> int:
        """Number of sequences."""
        return next(x for x in self.tensors().values() if x.dim()).shape[0]

    @property
    def bytes(self) -> int:
        """Bytes of the tensors."""
        return sum(x.nbytes for x in self.tensors().values())

    @property
    def device(self) -> torch.device:
        """Device of the tensors."""
        return next(x for x in self.tensors().values() if x.dim()).device

    @abstractmethod
    def select(self: Same, rows: Rows) -> Same:
        """Return the state of these batch rows, in this order, as a copy; beam search reorders with it."""

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor of the state by name; an integer, such as the length, is a 0-dim tensor."""
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
        return self.select(torch.arange(self.rows, device=self.device).repeat_interleave(copies))

    def to(self: Same, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Same:
        """Return a copy on this device, for a model of this dtype (default: as they are).

        Sums of a linear kind stay in at least float32, and those of a gate in float64, whatever the dtype. Keys take
        it, so that a kind with wider keys than its model, as `additive` has in half precision, raises at its next step.
        """
        moved = {
            name: x.to(device, _held_dtype(name, x, dtype), copy=True) if x.dim() else x
            for name, x in self.tensors().items()
        }
        return self.with_tensors(moved)

    def _require_rewindable(self, count: int) -> None:
        """Raise unless `count` tokens can be taken back."""
        if not 0 <= count <= self.rewindable:
            raise ValueError(
                f"count={count} tokens cannot be taken back from this {type(self).__name__}, only 0 to "
                f"{self.rewindable}; keep a fork of the earlier state, or decode with an undo log"
            )

    def _unsupported(self, method: str) -> NotImplementedError:
        return NotImplementedError(f"a state of class {type(self).__name__} has no method {method!r}")


class RaggedState(StateValue):
    """State of a model, whose rows may have different lengths. They end at the same place; padding is in front."""

    @property
    @abstractmethod
    def padding(self) -> Rows | None:
        """Places in front of each row that are padding; None: no padding."""

    @property
    @abstractmethod
    def length(self) -> int:
        """Number of places: tokens of the longest row, and padding that all rows have."""

    @property
    def lengths(self) -> list[int]:
        """Number of tokens of each row, without padding."""
        padding = [0] * self.rows if self.padding is None else self.padding.tolist()
        return [self.length - count for count in padding]

    def drop_places(self: Ragged, count: int) -> Ragged:
        """Return the state without its first `count` places, which must be padding in every row."""
        least = 0 if self.padding is None or not self.rows else int(self.padding.min())
        if not 0 <= count <= least:
            raise ValueError(f"count must be from 0 to {least}, the least padding of a row, got {count}")
        if self.padding is None:
            return self
        padding = self.padding - count
        return self._without_places(count, padding if bool(padding.any()) else None)

    def compact(self: Ragged) -> Ragged:
        """Return the state without what no row needs, such as after the longest row was left out."""
        if self.padding is None or not self.rows:
            return self
        least, most = (int(x) for x in self.padding.aminmax())
        return self.drop_places(least) if least or not most else self

    @abstractmethod
    def _without_places(self: Ragged, count: int, padding: Rows | None) -> Ragged:
        """Return the state without its first `count` places, and with this padding."""


def check_joinable(states: Sequence[StateValue]) -> None:
    """Raise unless all states are of one class."""
    first = type(states[0]).__name__
    other = next((name for state in states if (name := type(state).__name__) != first), None)
    if other is not None:
        raise ValueError(f"states cannot be joined: they are of classes {first} and {other}; join states of one model")


def join_parts(name: str, parts: Sequence[Sequence[Same]]) -> tuple[Same, ...]:
    """Join the states of each part, such as a block, of several states."""
    counts = [len(part) for part in parts]
    if len(set(counts)) > 1:
        raise ValueError(f"states cannot be joined: they have {counts} {name}; join states of one model")
    return tuple(first.join(*rest) for first, *rest in zip(*parts, strict=True))


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
    return _pad(x, axis, size, first=True)


def pad_end(x: Tensor, axis: int, size: int) -> Tensor:
    """Return `x` with zeros (False) at the end, so that this axis has `size` places."""
    return _pad(x, axis, size, first=False)


def join_offsets(
    offsets: Sequence[Tensor | None], lengths: Sequence[int], rows: Sequence[int], device: torch.device
) -> Tensor | None:
    """Return the offset of each row of the joined state, which is as long as the longest; None if all are 0."""
    longest = max(lengths)
    parts = [
        torch.full((count,), longest - length) + (0 if own is None else own.cpu())
        for own, length, count in zip(offsets, lengths, rows, strict=True)
    ]
    joined = torch.cat(parts)
    return joined.to(device) if bool(joined.any()) else None


def put_offsets(offsets: Sequence[Tensor | None], lengths: Sequence[int], held: int, rows: Rows) -> Tensor | None:
    """Return the offsets of a state of `held` rows after those of a second state were written over `rows`."""
    joined = join_offsets(offsets, lengths, (held, len(rows)), rows.device)
    if joined is None:
        return None
    written = joined[:held].clone()
    written[rows] = joined[held:]
    return written if bool(written.any()) else None


def needed_places(mask: Mask) -> tuple[Rows, Mask | None]:
    """Return the indices of the places that some row needs, and the mask of those; None if it hides nothing."""
    kept = mask.any(0).nonzero()[:, 0]
    mask = mask[:, kept]
    return kept, None if bool(mask.all()) else mask


def with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors under `prefix.name`."""
    return {f"{prefix}.{name}": x for name, x in tensors.items()}


def under_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names start with `prefix.`, without it."""
    return {name.removeprefix(f"{prefix}."): x for name, x in tensors.items() if name.startswith(f"{prefix}.")}


def _pad(x: Tensor, axis: int, size: int, *, first: bool) -> Tensor:
    missing = size - x.shape[axis]
    if not missing:
        return x
    zeros = x.new_zeros(*x.shape[:axis], missing, *x.shape[axis + 1 :])
    return torch.cat((zeros, x) if first else (x, zeros), axis)


def _held_dtype(name: str, x: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """Return the dtype of this tensor in a state for a model of `dtype`."""
    own = name.rpartition(".")[2]
    if dtype is None or not x.is_floating_point() or own in FIXED:
        return x.dtype
    return upcast_dtype(dtype) if own in SUMS else dtype
