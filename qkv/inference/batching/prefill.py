"""Prompts on their way into states, a bounded number of tokens per round.

Short prompts, of at most one piece, are processed side by side, in their order. Longer ones take turns, and so do those
that a prefix cache may know. So a short prompt never waits for a long one, and a long one proceeds in every round. With
a prefix cache, a prompt waits while another one processes what both begin with.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from qkv.inference.batching.generation import BatchRow, describe
from qkv.inference.batching.row_group import Arrival
from qkv.inference.prefix_cache import PrefixCache

LOOKUP = 8
"""Tokens that looking for a known prefix counts as, since copying its state takes time, too."""


class Prefill:
    """The rows whose prompts are being processed."""

    def __init__(self, model: Any, piece: int, prefix_cache: PrefixCache | None, device: torch.device):
        self.model = model
        self._piece = piece
        self._device = device
        self._cache = prefix_cache
        self._longest_short = piece if prefix_cache is None else min(piece, prefix_cache.block - 1)
        self._short: deque[BatchRow] = deque()
        self._long: deque[BatchRow] = deque()
        self._failed: list[BatchRow] = []
        self._begun: dict[BatchRow, tuple[Iterator[Any], Any]] = {}
        """States of long prompts so far, and the iterators that continue them."""
        self._awaited: dict[BatchRow, tuple[BatchRow, int]] = {}
        """What a prompt waits for: another one, and the number of tokens that both begin with."""

    @property
    def rows(self) -> list[BatchRow]:
        """All rows, each with a part of its state at most."""
        return [*self._short, *self._long, *self._failed]

    @property
    def state_bytes(self) -> int:
        """Bytes of the states so far."""
        return sum(state.bytes for _, state in self._begun.values())

    def add(self, row: BatchRow) -> None:
        """Begin with a prompt."""
        (self._short if len(row.ids) <= self._longest_short else self._long).append(row)

    def remove_ended(self) -> list[BatchRow]:
        """Drop rows that have ended, and return them."""
        ended = [row for row in self.rows if row.reason is not None]
        if ended:
            self._short = deque(row for row in self._short if row.reason is None)
            self._long = deque(row for row in self._long if row.reason is None)
            self._failed = []
            self._begun = {row: begun for row, begun in self._begun.items() if row.reason is None}
            self._awaited = {row: awaited for row, awaited in self._awaited.items() if row.reason is None}
        return ended

    def run(self) -> list[Arrival]:
        """Process one round's tokens, and return the rows whose states are complete."""
        return self._run_short() + self._run_long()

    def _run_short(self) -> list[Arrival]:
        rows: list[BatchRow] = []
        longest = 0
        while self._short:
            longest = max(longest, len(self._short[0].ids))
            if rows and (len(rows) + 1) * longest > self._piece:  # padding counts
                break
            rows.append(self._short.popleft())
        if not rows:
            return []
        try:
            return [(rows, self._start(rows))]
        except Exception:  # noqa: BLE001 - find the row that it comes from
            return [arrival for row in rows for arrival in self._start_alone(row)]

    def _start_alone(self, row: BatchRow) -> list[Arrival]:
        try:
            return [([row], self._start([row]))]
        except Exception as error:  # noqa: BLE001 - the other rows go on
            self._fail(row, error)
            return []

    def _start(self, rows: Sequence[BatchRow]) -> Any:
        longest = max(len(row.ids) for row in rows)
        missing = [longest - len(row.ids) for row in rows]
        padded = [[0] * count + list(row.ids) for row, count in zip(rows, missing, strict=True)]
        mask = None
        if any(missing):
            mask = torch.arange(longest, device=self._device) >= torch.tensor(missing, device=self._device)[:, None]
        return self.model.start(self._tensor(padded), mask)

    def _run_long(self) -> list[Arrival]:
        ready: list[Arrival] = []
        left = self._piece
        while left > 0 and (row := self._next_long()) is not None:
            self._long.remove(row)
            before = left
            try:
                left = self._take_turn(row, left)
            except Exception as error:  # noqa: BLE001 - the other rows go on
                self._fail(row, error)
                continue
            state = self._begun[row][1]
            if state.length < len(row.ids):
                (self._long.append if left < before else self._long.appendleft)(row)
                break
            del self._begun[row]
            ready.append(([row], state))
        return ready

    def _next_long(self) -> BatchRow | None:
        """Return the row whose turn it is."""
        return next((row for row in self._long if row in self._begun or not self._waits(row)), None)

    def _waits(self, row: BatchRow) -> bool:
        """Return whether another row now processes tokens that this one begins with, too."""
        if self._cache is None:
            return False
        awaited = self._awaited.pop(row, None)
        if awaited is None or not self._is_behind(*awaited):
            pairs = ((other, _count_shared(row.ids, other.ids, self._cache.block)) for other in self._begun)
            awaited = next((pair for pair in pairs if self._is_behind(*pair)), None)
        if awaited is not None:
            self._awaited[row] = awaited
        return awaited is not None

    def _is_behind(self, row: BatchRow, tokens: int) -> bool:
        """Return whether a prompt has begun and so many of its tokens are not processed yet."""
        return row in self._begun and self._begun[row][1].length < tokens

    def _take_turn(self, row: BatchRow, left: int) -> int:
        """Process pieces of a prompt while this round has tokens left; return how many are left then."""
        if row not in self._begun:
            pieces = self._pieces(row.ids) if self._cache is None else self._cache.pieces(row.ids)
            self._begun[row] = pieces, next(pieces)
            left -= 0 if self._cache is None else LOOKUP
        pieces, state = self._begun[row]
        size = self._piece if self._cache is None else self._cache.block
        while state.length < len(row.ids) and (left >= size or left == self._piece):
            after = next(pieces)
            left -= after.length - state.length
            state = after
        self._begun[row] = pieces, state
        return left

    def _pieces(self, ids: Sequence[int]) -> Iterator[Any]:
        """Yield the empty state, and the one after each piece."""
        state = self.model.start(self._tensor([[]]), None)
        yield state
        for start in range(0, len(ids), self._piece):
            state = self.model.prefill(self._tensor([list(ids[start : start + self._piece])]), state)
            yield state

    def _fail(self, row: BatchRow, error: Exception) -> None:
        row.fail(f"the model failed on the prompt: {describe(error)}")
        self._failed.append(row)  # for `remove_ended`

    def _tensor(self, ids: list[list[int]]) -> Tensor:
        return torch.tensor(ids, dtype=torch.int64, device=self._device)


def _count_shared(first: Sequence[int], second: Sequence[int], block: int) -> int:
    """Return the number of tokens, in whole blocks, that both begin with."""
    shared = 0
    while first[shared : shared + block] == second[shared : shared + block] and shared + block <= min(
        len(first), len(second)
    ):
        shared += block
    return shared
