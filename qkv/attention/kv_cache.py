"""The KV cache: the state of mechanisms that attend to every past key again."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from qkv.attention.base import State
from qkv.attention.internal import graph_op
from qkv.attention.internal.gates import document_index, running_sums
from qkv.attention.internal.kv_buffer import KVBuffer
from qkv.attention.state import check_joinable, join_rows, pad_front
from qkv.shapes import Decay, Keys, Mask, Rows, Starts, Values

MAX_PREALLOCATED = 2**16
"""Maximum number of tokens to allocate in advance; a longer cache grows by doubling."""
PLACE_AXES = {"keys": 2, "values": 2, "mask": -1, "decay_sums": -1, "documents": -1}
"""Tensors with an entry for each cached token, and the axis."""


class KVCache(State):
    """KV cache: the keys and values of all tokens so far, or of the last `window` tokens.

    `append` concatenates, so gradients flow. Under `torch.inference_mode`, outside of compiled code, it writes into a
    preallocated buffer instead, which the old state shares. A state can then be continued only once (`select` copies,
    to branch). `rewind` takes over the buffer, too: the later states can then no longer be read.
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
        self._buffer: KVBuffer | None = None
        self._end = 0  # write offset in the buffer
        self._era = 0
        self._consumed = False
        self._is_view = False  # of a buffer that another state writes to

    @property
    def rows(self) -> int:
        """Number of sequences."""
        return self.keys.shape[0]

    @property
    def device(self) -> torch.device:
        """Device of the keys."""
        return self.keys.device

    @property
    def bytes(self) -> int:
        """Bytes of the cached keys, values and sums of a gate (a preallocated buffer may be larger)."""
        return self.keys.nbytes + self.values.nbytes + (0 if self.decay_sums is None else self.decay_sums.nbytes)

    @property
    def addressable_keys(self) -> int:
        """Number of cached keys."""
        return self.keys.shape[2]

    @property
    def place_axes(self) -> dict[str, int]:
        """Axis of the cached tokens in each tensor; empty after a window has dropped some."""
        return {} if self._has_dropped else {name: axis for name, axis in PLACE_AXES.items() if name in self._named()}

    @property
    def rewindable(self) -> int:
        """Number of cached tokens, or 0 after a window has dropped some: a shorter state would need those."""
        return 0 if self._has_dropped else self.length

    def adopt_dtype(self, k: Keys, v: Values) -> None:
        """Take the dtype and device of the first keys and values, while the cache is empty.

        `start` cannot always know them: autocast lowers precision, and a quantized layer has no floating-point weight.
        """
        if self.addressable_keys == 0:
            self.keys, self.values = self.keys.to(k), self.values.to(v)

    @classmethod
    def of_tokens(
        cls, k: Keys, v: Values, mask: Mask | None, decay: Decay | None = None, starts: Starts | None = None
    ) -> "KVCache":
        """Return the cache of these tokens alone, in tensors of its own; gradients flow."""
        cache = cls(k, v, k.shape[2], mask)
        cache.decay_sums = None if decay is None else running_sums(decay, mask)
        cache.documents = None if starts is None else document_index(starts)
        return cache

    def followed_by(self, others: Sequence["KVCache"]) -> "KVCache":
        """Return the cache of these tokens, then those of `others`, each of which is a cache of its tokens alone."""
        states = (self, *(other for other in others if other.length))
        keys, values = (torch.cat([getattr(x, name) for x in states], 2) for name in ("keys", "values"))
        cache = KVCache(keys, values, sum(x.length for x in states), capacity=self.capacity)
        if any(x.mask is not None for x in states):
            cache.mask = torch.cat([x._visible() for x in states], 1)
        cache.decay_sums = _chain([x.decay_sums for x in states], states)
        cache.documents = _chain([x.documents for x in states], states)
        return cache

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
        self._require_intact()
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
        self._require_intact()
        mask, sums, documents = (None if x is None else x[rows] for x in (self.mask, self.decay_sums, self.documents))
        copy = KVCache(self.keys[rows], self.values[rows], self.length, mask, self.capacity)
        copy.decay_sums, copy.documents = sums, documents
        return copy

    def tensors(self) -> dict[str, Tensor]:
        """Return keys, values and length, and mask, sums of a gate and documents if there are any."""
        self._require_intact()
        self._share()
        return {**self._named(), "length": torch.tensor(self.length)}

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
        for state in states:
            state._require_intact()
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
        self._share()
        cache = self._narrow(start, kept, self.length - count)
        if cache.mask is not None and bool(cache.mask.all()):
            cache.mask = None
        return cache

    def rewind(self, count: int) -> "KVCache":
        """Return the cache without its last `count` tokens, where no window has dropped any.

        Under `torch.inference_mode` it takes over the buffer of this state, which can then not be used any more.
        """
        if count == 0:
            return self
        self._require_rewindable(count)
        self._require_intact()
        kept = self.addressable_keys - count
        buffer = self._buffer
        if buffer is None:
            return self._narrow(0, kept, self.length - count)
        if self._consumed or self._is_view or buffer.shared or not graph_op.writes_in_place():
            copy = self._narrow(0, kept, self.length - count)
            copy.keys, copy.values = copy.keys.clone(), copy.values.clone()
            return copy
        buffer.rewind(self._end - count)
        self._consumed = True
        return self._narrow(0, kept, self.length - count)._in_buffer(buffer, self._end - count)

    def preserved(self) -> "KVCache":
        """Return a view: a later step writes behind it. A step that continues the view copies it first."""
        view = self._narrow(0, self.addressable_keys, self.length)
        view._buffer, view._end, view._era, view._is_view = self._buffer, self._end, self._era, True
        return view

    def settled(self) -> "KVCache":
        """Return the cache, or a copy if a window moves through its buffer."""
        return self.fork() if self._has_dropped else self

    @property
    def _has_dropped(self) -> bool:
        return self.addressable_keys < self.length

    def _require_intact(self) -> None:
        """Raise if a state after this one was taken back to before its end, and then continued."""
        if self._buffer is not None and not self._buffer.is_intact(self._era, self._end):
            raise ValueError("this State was taken back in place by rewind; branch from it with select(rows) before")

    def _share(self) -> None:
        """Keep the buffer from being written over: others hold views of it."""
        if self._buffer is not None:
            self._buffer.shared = True

    def _named(self) -> dict[str, Tensor]:
        """Return the tensors with an entry for each cached token."""
        optional = {"mask": self.mask, "decay_sums": self.decay_sums, "documents": self.documents}
        named = {"keys": self.keys, "values": self.values}
        return named | {name: x for name, x in optional.items() if x is not None}

    def _narrow(self, start: int, kept: int, length: int) -> "KVCache":
        """Return a view of `kept` cached tokens from the one at `start` on."""
        named = {name: x.narrow(PLACE_AXES[name], start, kept) for name, x in self._named().items()}
        return self.with_tensors({**named, "length": torch.tensor(length)})

    def _in_buffer(self, buffer: KVBuffer, end: int) -> "KVCache":
        """Continue this cache in a buffer that holds its tokens before the place `end`."""
        self._buffer, self._end, self._era = buffer, end, buffer.era
        return self

    def _visible(self) -> Tensor:
        """Return the mask (batch, keys) of the cached tokens."""
        if self.mask is not None:
            return self.mask
        return self.keys.new_ones(self.keys.shape[0], self.addressable_keys, dtype=torch.bool)

    def _append_in_place(self, k: Keys, v: Values, mask: Mask | None) -> "KVCache":
        new = k.shape[2]
        if self._buffer is None or self._is_view or self._end + new > self._buffer.capacity:
            self._grow(new)
        buffer, end = self._buffer, self._end + new
        assert buffer is not None
        buffer.write(k, v, self._end)
        places = slice(self._end - self.addressable_keys, end)
        keys, values = buffer.keys[:, :, places], buffer.values[:, :, places]
        following = KVCache(keys, values, self.length + new, self._append_mask(k, mask), self.capacity)
        self._consumed = True
        return following._in_buffer(buffer, end)

    def _grow(self, new: int) -> None:
        """Move the cache into a larger buffer: doubling it makes appending amortized constant."""
        needed, capacity = self.addressable_keys + new, min(self.capacity, MAX_PREALLOCATED)
        if needed > capacity:  # a power of two, so that rows of other heads stay aligned in memory
            capacity = 2 ** (2 * needed - 1).bit_length()
        self._in_buffer(KVBuffer(self.keys, self.values, capacity), self.addressable_keys)
        self._is_view = False

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


def _chain(parts: Sequence[Tensor | None], states: Sequence[KVCache]) -> Tensor | None:
    """Continue sums or documents from one cache to the next; a cache without them has zeros."""
    example = next((x for x in parts if x is not None), None)
    if example is None:
        return None
    total = example[..., :0]
    for own, state in zip(parts, states, strict=True):
        zeros = example.new_zeros(*example.shape[:-1], state.addressable_keys) if own is None else own
        total = _continue(total, zeros)
    return total


def _continue(past: Tensor, new: Tensor) -> Tensor:
    """Append sums that begin at 0 to those of the tokens before."""
    last = past[..., -1:] if past.shape[-1] else past.new_zeros(())
    return torch.cat((past, last + new), -1)
