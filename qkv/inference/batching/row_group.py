"""Rows that step together: one state, whose rows are taken by generations and become free again.

Copying a state takes up to half as long as a step, so a row that ends stays as a free slot. A new row takes it over in
place, if states have one size. Free slots are dropped, with a copy, once they are an eighth, or half while other rows
are about to come. KV caches differ in length: there free slots are never taken, but dropped when rows enter.
"""

from collections.abc import Sequence
from typing import Any

import torch

from qkv.attention.kv_cache import KVCache
from qkv.decode.stepper import check_logits_shape
from qkv.inference.batching.choose_tokens import choose_tokens
from qkv.inference.batching.generation import BatchRow, describe

Arrival = tuple[list[BatchRow], Any]
"""Rows and their state, in one order."""

MAX_FREE = 1 / 8
"""Largest share of a state that free slots may hold."""
SPARE = 4
"""A state that is copied because rows enter gets a free slot for each 4 that it had, if others follow."""
MAX_FREE_FOR_OTHERS = 1 / 2
"""The same while other rows are about to come."""


class RowGroup:
    """Rows whose states have room for `places` tokens; `grows` says whether a state grows with its length."""

    def __init__(self, model: Any, places: int, grows: bool, device: torch.device):
        self.model = model
        self.places = places
        self.slots: list[BatchRow | None] = []
        self.copied_rows = 0
        self._grows = grows
        self._device = device
        self._state: Any = None

    @property
    def rows(self) -> list[BatchRow]:
        """Rows that go on."""
        return [row for row in self.slots if row is not None]

    @property
    def state_bytes(self) -> int:
        """Bytes of the state, free slots included."""
        return 0 if self._state is None else self._state.bytes

    def add(self, arrivals: Sequence[Arrival], spare: int) -> None:
        """Let these rows in. If the whole state is copied for it, it gets up to `spare` free slots, too."""
        rows = [row for group, _ in arrivals for row in group]
        first, *rest = [state for _, state in arrivals]
        new = first.join(*rest) if rest else first
        if not self.rows:
            self.slots, self._state = [], None
        elif self._grows:
            self.drop_free_slots()
        else:
            rows, new = self._take_slots(rows, new)
        if rows:
            self.copied_rows += len(self.slots) + len(rows)
            spare = 0 if self._grows else min(spare, len(self.slots) // SPARE)
            parts = [new, new.select(self._index([0] * spare))] if spare else [new]
            self._state = parts[0] if self._state is None else self._state.join(*parts)
            self.slots = [*self.slots, *rows, *([None] * spare)]
        self._state = self._state.compact()
        self._bound_capacity()

    def _take_slots(self, rows: list[BatchRow], new: Any) -> Arrival:
        """Write rows over free slots; return those that found none."""
        free = [number for number, row in enumerate(self.slots) if row is None][: len(rows)]
        if not free:
            return rows, new
        count = len(free)
        self._state = self._state.put(self._index(free), new.select(self._index(range(count))))
        for number, row in zip(free, rows, strict=False):
            self.slots[number] = row
        return rows[count:], new.select(self._index(range(count, len(rows)))) if count < len(rows) else None

    def drop_free_slots(self) -> None:
        """Copy the state without its free slots."""
        kept = [number for number, row in enumerate(self.slots) if row is not None]
        if len(kept) == len(self.slots):
            return
        self.copied_rows += len(kept)
        self._state = self._state.select(self._index(kept)).compact() if kept else None
        self.slots = [self.slots[number] for number in kept]
        self._bound_capacity()

    def _empty_free_slots(self) -> None:
        """Let free slots begin anew, so that the state is as long as its longest row that goes on."""
        if self._grows:
            self.drop_free_slots()
            return
        free = [number for number, row in enumerate(self.slots) if row is None]
        nothing = torch.zeros(len(free), 0, dtype=torch.int64, device=self._device)
        self._state = self._state.put(self._index(free), self.model.start(nothing, None)).compact()

    def step(self) -> int:
        """Decode one token of each row; return how many were chosen. An error of the model ends every row."""
        if self._state.length >= self.places:  # only ended rows are that long
            self._empty_free_slots()
        tokens = [0 if row is None else row.token for row in self.slots]
        try:
            logits, self._state = self.model.step(torch.tensor(tokens, device=self._device), self._state)
            check_logits_shape(logits, len(tokens))
        except Exception as error:  # noqa: BLE001 - other groups go on
            for row in self.rows:
                row.fail(f"the model failed: {describe(error)}")
            return 0
        return choose_tokens(logits, self.slots)

    def remove_ended(self, others_come: bool) -> list[BatchRow]:
        """Free the slots of rows that have ended, and return those rows."""
        ended = [row for row in self.rows if row.reason is not None]
        if ended:
            self.slots = [row if row is None or row.reason is None else None for row in self.slots]
            held, needed = len(self.slots), len(self.rows)
            if self._grows:
                held *= self._state.length
                needed *= max((row.length for row in self.rows), default=0)
            free = MAX_FREE_FOR_OTHERS if others_come and not self._grows else MAX_FREE
            if needed <= (1 - free) * held:
                self.drop_free_slots()
        return ended

    def _bound_capacity(self) -> None:
        """Let KV caches preallocate what these rows can need, not what the model's longest sequence does."""
        for block in () if self._state is None else self._state.blocks:
            if isinstance(block.attention, KVCache):
                block.attention.capacity = self.places

    def _index(self, rows: Sequence[int]) -> torch.Tensor:
        return torch.tensor(list(rows), dtype=torch.int64, device=self._device)
