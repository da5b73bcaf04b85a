"""The KV cache: the state of mechanisms that attend to every past key again."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from qkv.attention.base import State
from qkv.attention.internal import graph_op
from qkv.attention.internal.gates import document_index, running_sums
from qkv.attention.state import check_joinable, join_rows, pad_front
from qkv.shapes import Decay, Keys, Mask, Rows, Starts, Values

MAX_PREALLOCATED = 2**16
"""Maximum number of tokens to allocate in advance; a longer cache grows by doubling."""


class KVCache(State):
    """KV cache: the keys and values of all tokens so far, or of the last `window` tokens.

    `append` concatenates, so gradients flow. Under `torch.inference_mode`, outside of compiled code, it writes into a
    preallocated buffer instead, which the old state shares. A state can then be continued only once (`select` copies,
    to branch).
    """

    def __init__(self, keys: Keys, values: Values, length: int = 0, mask: Mask | None = None, capacity: int = 0):
        self.keys = keys
        self.values = values
        self.length = length
        self.mask = mask
        self.capacity = capacity
        self.decay_sums: Tensor | None = None
        """Cumulative sums of the gate's rates over the cached tokens: (batch, heads, keys)."""
        self.documents: Tensor | None = None
        """Index of each cached token's document: (batch, keys)."""
        self._buffers: tuple[Tensor, Tensor] | None = None
        self._end = 0  # write offset in the buffers
        self._consumed = False

    @property
    def bytes(self) -> int:
        """Bytes of the cached keys, values and sums of a gate (a preallocated buffer may be larger)."""
        return self.keys.nbytes + self.values.nbytes + (0 if self.decay_sums is None else self.decay_sums.nbytes)

    @property
    def addressable_keys(self) -> int:
        """Number of cached keys."""
        return self.keys.shape[2]

    def adopt_dtype(self, k: Keys, v: Values) -> None:
        """Take the dtype and device of the first keys and values, while the cache is empty.

        `start` cannot always know them: autocast lowers precision, and a quantized layer has no floating-point weight.
        """
        if self.addressable_keys == 0:
            self.keys, self.values = self.keys.to(k), self.values.to(v)

    def append(
        self, k: Keys, v: Values, mask: Mask | None, decay: Decay | None = None, starts: Starts | None = None
    ) -> "KVCache":
        """Return the cache with these tokens appended; `decay` has a rate for each of them."""
        following = self._append_tokens(k, v, mask)
        following.decay_sums = self._append_sums(k, mask, decay)
        following.documents = self._append_documents(k, starts)
        return following

    def _append_tokens(self, k: Keys, v: Values, mask: Mask | None) -> "KVCache":
        if self._consumed:
            raise ValueError("this State was already continued in place; branch from it with select(rows) before")
        if graph_op.writes_in_place():
            return self._append_in_place(k, v, mask)
        keys, values = torch.cat((self.keys, k), 2), torch.cat((self.values, v), 2)
        return KVCache(keys, values, self.length + k.shape[2], self._append_mask(k, mask), self.capacity)

    def trim(self, window: int | None) -> "KVCache":
        """Keep only the last `window` tokens, in place."""
        if window is not None and self.addressable_keys > window:
            self.keys, self.values = self.keys[:, :, -window:], self.values[:, :, -window:]
            self.mask, self.decay_sums, self.documents = (
                None if x is None else x[..., -window:] for x in (self.mask, self.decay_sums, self.documents)
            )
        return self

    def select(self, rows: Rows) -> "KVCache":
        """Return a copy of these batch rows, with its own buffer."""
        mask, sums, documents = (None if x is None else x[rows] for x in (self.mask, self.decay_sums, self.documents))
        copy = KVCache(self.keys[rows], self.values[rows], self.length, mask, self.capacity)
        copy.decay_sums, copy.documents = sums, documents
        return copy

    def tensors(self) -> dict[str, Tensor]:
        """Return keys, values and length, and mask, sums of a gate and documents if there are any."""
        named = {"keys": self.keys, "values": self.values, "length": torch.tensor(self.length)}
        optional = {"mask": self.mask, "decay_sums": self.decay_sums, "documents": self.documents}
        return named | {name: x for name, x in optional.items() if x is not None}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> "KVCache":
        """Return a cache of these tensors, with the same capacity."""
        length, mask = int(tensors["length"]), tensors.get("mask")
        cache = KVCache(tensors["keys"], tensors["values"], length, mask, self.capacity)
        cache.decay_sums, cache.documents = tensors.get("decay_sums"), tensors.get("documents")
        return cache

    def join(self, *others: "KVCache") -> "KVCache":
        """Return one cache of all rows; the mask hides the padding of those with fewer cached tokens."""
        states = (self, *others)
        check_joinable(states)
        example = max(states, key=lambda state: state.addressable_keys)
        widest = example.addressable_keys
        for state in states:
            state.adopt_dtype(example.keys, example.values)
        keys = join_rows("keys", [pad_front(state.keys, 2, widest) for state in states])
        values = join_rows("values", [pad_front(state.values, 2, widest) for state in states])
        cache = KVCache(keys, values, max(state.length for state in states), None, self.capacity)
        if any(state.mask is not None or state.addressable_keys < widest for state in states):
            cache.mask = join_rows("mask", [pad_front(state._visible(), 1, widest) for state in states])
        cache.decay_sums = _join_optional("decay_sums", [state.decay_sums for state in states], states, widest)
        cache.documents = _join_optional("documents", [state.documents for state in states], states, widest)
        return cache

    def drop_places(self, count: int) -> "KVCache":
        """Return the cache without its first `count` places; those that a window has dropped count too."""
        if not 0 <= count <= self.length:
            raise ValueError(f"count must be from 0 to length={self.length}, got {count}")
        kept = min(self.addressable_keys, self.length - count)
        start = self.addressable_keys - kept
        if bool(self._visible()[:, :start].any()):
            raise ValueError(f"count={count} places cannot be dropped: some of them hold tokens that can be seen")
        named = self.tensors()
        for name, axis in (("keys", 2), ("values", 2), ("mask", -1), ("decay_sums", -1), ("documents", -1)):
            if name in named:
                named[name] = named[name].narrow(axis, start, kept)
        if "mask" in named and bool(named["mask"].all()):
            del named["mask"]
        return self.with_tensors({**named, "length": torch.tensor(self.length - count)})

    def _visible(self) -> Tensor:
        """Return the mask (batch, keys) of the cached tokens."""
        if self.mask is not None:
            return self.mask
        return self.keys.new_ones(self.keys.shape[0], self.addressable_keys, dtype=torch.bool)

    def _append_in_place(self, k: Keys, v: Values, mask: Mask | None) -> "KVCache":
        new = k.shape[2]
        if self._buffers is None or self._end + new > self._buffers[0].shape[2]:
            self._grow(new)
        assert self._buffers is not None
        end = self._end + new
        start = self._end - self.addressable_keys
        keys, values = self._buffers
        keys[:, :, self._end : end] = k
        values[:, :, self._end : end] = v
        following = KVCache(
            keys[:, :, start:end], values[:, :, start:end], self.length + new, self._append_mask(k, mask), self.capacity
        )
        following._buffers, following._end = self._buffers, end
        self._consumed = True
        return following

    def _grow(self, new: int) -> None:
        """Move the cache into larger buffers: doubling them makes appending amortized constant."""
        capacity = max(min(self.capacity, MAX_PREALLOCATED), 2 * (self.addressable_keys + new))

        def move(x: Tensor) -> Tensor:
            buffer = x.new_empty(*x.shape[:2], capacity, x.shape[3])
            buffer[:, :, : self.addressable_keys] = x
            return buffer

        self._buffers = move(self.keys), move(self.values)
        self._end = self.addressable_keys

    def _append_mask(self, k: Keys, mask: Mask | None) -> Tensor | None:
        if mask is None and self.mask is None:
            return None
        past = self._visible()
        new = k.new_ones(k.shape[0], k.shape[2], dtype=torch.bool) if mask is None else mask
        return torch.cat((past, new), 1)

    def _append_sums(self, k: Keys, mask: Mask | None, decay: Decay | None) -> Tensor | None:
        """Continue the sums of a gate; tokens without one have rate 0."""
        past = self.decay_sums
        if decay is None and past is None:
            return None
        new = None if decay is None else running_sums(decay, mask)
        known = past if new is None else new
        assert known is not None
        if past is None:
            past = known.new_zeros(*known.shape[:2], self.addressable_keys)
        if new is None:
            new = known.new_zeros(*known.shape[:2], k.shape[2])
        if past.shape[1] != new.shape[1]:
            raise ValueError(f"decay has {new.shape[1]} heads, but that of the tokens before had {past.shape[1]}")
        return _continue(past, new)

    def _append_documents(self, k: Keys, starts: Starts | None) -> Tensor | None:
        """Continue the index of the documents; tokens without `starts` start none."""
        if starts is None and self.documents is None:
            return None
        batch, _, new, _ = k.shape
        starts = k.new_zeros(batch, new, dtype=torch.bool) if starts is None else starts
        past = self.documents
        if past is None:
            past = torch.zeros(batch, self.addressable_keys, dtype=torch.long, device=k.device)
        return _continue(past, document_index(starts))


def _join_optional(name: str, parts: Sequence[Tensor | None], states: Sequence[KVCache], widest: int) -> Tensor | None:
    """Join sums or documents along the batch; a cache without them has zeros."""
    example = next((x for x in parts if x is not None), None)
    if example is None:
        return None
    zeros = (example.new_zeros(s.keys.shape[0], *example.shape[1:-1], s.addressable_keys) for s in states)
    filled = [zero if own is None else own for own, zero in zip(parts, zeros, strict=True)]
    return join_rows(name, [pad_front(x, x.dim() - 1, widest) for x in filled])


def _continue(past: Tensor, new: Tensor) -> Tensor:
    """Append sums that begin at 0 to those of the tokens before."""
    last = past[..., -1:] if past.shape[-1] else past.new_zeros(())
    return torch.cat((past, last + new), -1)
