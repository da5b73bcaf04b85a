"""The state of mechanisms that need every key again: keys and values, one after the other."""

import torch
from torch import Tensor

from qkv.attention.base import State
from qkv.shapes import Keys, Mask, Rows, Values


class KeyValues(State):
    """Keys and values of the tokens seen, or of the last `window` of them.

    Elsewhere appending concatenates, so gradients flow. Under `torch.inference_mode` it writes into
    a preallocated buffer instead; the old state would then see its successor's tokens, so a state
    can be continued only once (`select` copies, to branch).
    """

    def __init__(self, keys: Keys, values: Values, length: int = 0, mask: Mask | None = None, capacity: int = 0):
        self.keys = keys
        self.values = values
        self.length = length
        self.mask = mask
        self.capacity = capacity
        self._buffers: tuple[Tensor, Tensor] | None = None
        self._end = 0  # where the next token goes in the buffers
        self._continued = False

    @property
    def bytes(self) -> int:
        """Bytes of the keys and values held (a preallocated buffer may be larger)."""
        return self.keys.nbytes + self.values.nbytes

    @property
    def reach(self) -> int:
        """Keys held."""
        return self.keys.shape[2]

    def follow(self, k: Keys, v: Values) -> None:
        """As long as nothing is held: the type and device of the first keys and values.

        Whoever starts a state cannot always know them: autocast narrows, a quantized layer has no weights to ask.
        """
        if self.reach == 0:
            self.keys, self.values = self.keys.to(k), self.values.to(v)

    def append(self, k: Keys, v: Values, mask: Mask | None) -> "KeyValues":
        """The state with these tokens after those that are held."""
        if self._continued:
            raise ValueError("this State was continued already, in place; branch from it with select(rows) before")
        if torch.is_inference_mode_enabled():
            return self._append_in_place(k, v, mask)
        keys, values = torch.cat((self.keys, k), 2), torch.cat((self.values, v), 2)
        return KeyValues(keys, values, self.length + k.shape[2], self._append_mask(k, mask), self.capacity)

    def trim(self, window: int | None) -> "KeyValues":
        """Only the last `window` tokens; the state itself is changed, being the caller's own."""
        if window is not None and self.reach > window:
            self.keys, self.values = self.keys[:, :, -window:], self.values[:, :, -window:]
            self.mask = None if self.mask is None else self.mask[:, -window:]
        return self

    def select(self, rows: Rows) -> "KeyValues":
        """A copy of these sequences, with room of its own."""
        mask = None if self.mask is None else self.mask[rows]
        return KeyValues(self.keys[rows], self.values[rows], self.length, mask, self.capacity)

    def _append_in_place(self, k: Keys, v: Values, mask: Mask | None) -> "KeyValues":
        new = k.shape[2]
        if self._buffers is None or self._end + new > self._buffers[0].shape[2]:
            self._make_room(new)
        assert self._buffers is not None
        end = self._end + new
        start = self._end - self.reach
        keys, values = self._buffers
        keys[:, :, self._end : end] = k
        values[:, :, self._end : end] = v
        following = KeyValues(
            keys[:, :, start:end], values[:, :, start:end], self.length + new, self._append_mask(k, mask), self.capacity
        )
        following._buffers, following._end = self._buffers, end
        self._continued = True
        return following

    def _make_room(self, new: int) -> None:
        """Move what is held to the front of larger buffers: doubling makes appending constant on average."""
        room = max(self.capacity, 2 * (self.reach + new))

        def moved(x: Tensor) -> Tensor:
            buffer = x.new_empty(*x.shape[:2], room, x.shape[3])
            buffer[:, :, : self.reach] = x
            return buffer

        self._buffers = moved(self.keys), moved(self.values)
        self._end = self.reach

    def _append_mask(self, k: Keys, mask: Mask | None) -> Tensor | None:
        if mask is None and self.mask is None:
            return None
        past = k.new_ones(k.shape[0], self.reach, dtype=torch.bool) if self.mask is None else self.mask
        new = k.new_ones(k.shape[0], k.shape[2], dtype=torch.bool) if mask is None else mask
        return torch.cat((past, new), 1)
