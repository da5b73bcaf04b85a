"""Prompts on their way into states, a bounded number of tokens per round.

Short prompts, of at most one piece, are processed side by side, in their order. Longer ones take turns of one piece.
So a short prompt never waits for a long one, and a long one proceeds in every round.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from qkv.inference.batching.generation import Row, describe
from qkv.inference.batching.row_group import Arrival


class Prefill:
    """The rows whose prompts are being processed."""

    def __init__(self, model: Any, piece: int, device: torch.device):
        self.model = model
        self._piece = piece
        self._device = device
        self._short: deque[Row] = deque()
        self._long: deque[Row] = deque()
        self._begun: dict[Row, Any] = {}
        """States of long prompts after some of their pieces."""

    @property
    def rows(self) -> list[Row]:
        """All rows, each with a part of its state at most."""
        return [*self._short, *self._long]

    @property
    def state_bytes(self) -> int:
        """Bytes of the states so far."""
        return sum(state.bytes for state in self._begun.values())

    def add(self, row: Row) -> None:
        """Begin with a prompt."""
        (self._short if len(row.ids) <= self._piece else self._long).append(row)

    def remove_ended(self) -> list[Row]:
        """Drop rows that have ended, and return them."""
        ended = [row for row in self.rows if row.reason is not None]
        if ended:
            self._short = deque(row for row in self._short if row.reason is None)
            self._long = deque(row for row in self._long if row.reason is None)
            self._begun = {row: state for row, state in self._begun.items() if row.reason is None}
        return ended

    def run(self) -> list[Arrival]:
        """Process one round's tokens, and return the rows whose states are complete."""
        return self._run_short() + self._run_long()

    def _run_short(self) -> list[Arrival]:
        rows: list[Row] = []
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

    def _start_alone(self, row: Row) -> list[Arrival]:
        try:
            return [([row], self._start([row]))]
        except Exception as error:  # noqa: BLE001 - the other rows go on
            row.fail(f"the model failed on the prompt: {describe(error)}")
            self._short.appendleft(row)  # for remove_ended
            return []

    def _start(self, rows: Sequence[Row]) -> Any:
        longest = max(len(row.ids) for row in rows)
        missing = [longest - len(row.ids) for row in rows]
        padded = [[0] * count + list(row.ids) for row, count in zip(rows, missing, strict=True)]
        mask = None
        if any(missing):
            mask = torch.arange(longest, device=self._device) >= torch.tensor(missing, device=self._device)[:, None]
        return self.model.start(self._tensor(padded), mask)

    def _run_long(self) -> list[Arrival]:
        budget, ready = self._piece, []
        while self._long and budget > 0:
            row = self._long.popleft()
            try:
                state, used = self._advance(row, budget)
            except Exception as error:  # noqa: BLE001 - the other rows go on
                row.fail(f"the model failed on the prompt: {describe(error)}")
                self._long.append(row)  # for remove_ended
                break
            budget -= used
            if state.length == len(row.ids):
                self._begun.pop(row, None)
                ready.append(([row], state))
            else:
                self._begun[row] = state
                self._long.append(row)
        return ready

    def _advance(self, row: Row, budget: int) -> tuple[Any, int]:
        """Return the state after at most `budget` more tokens, and how many were processed."""
        state = self._begun.pop(row, None)
        if state is None:
            state = self.model.start(self._tensor([[]]), None)
        piece = row.ids[state.length : state.length + budget]
        return self.model.prefill(self._tensor([list(piece)]), state), len(piece)

    def _tensor(self, ids: list[list[int]]) -> Tensor:
        return torch.tensor(ids, dtype=torch.int64, device=self._device)
