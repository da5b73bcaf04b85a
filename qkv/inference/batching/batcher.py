"""Continuous batching: generations enter and leave a running batch between decoding steps.

A round drops what was canceled, admits waiting requests in their order, processes a piece of their prompts, and decodes
one token of every row.
"""

import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from qkv.inference.batching.generation import BatchRow, Generation
from qkv.inference.batching.limits import EndRate, Limits, QueueFullError
from qkv.inference.batching.prefill import Prefill
from qkv.inference.batching.row_group import RowGroup
from qkv.inference.batching.row_sizes import RowSizes
from qkv.inference.prefix_cache import PrefixCache


@dataclass(frozen=True)
class BatcherStatistics:
    """What a batcher holds after its last round, and what it has done."""

    waiting: int = 0
    """Requests that wait in the queue."""
    running: int = 0
    """Generations in prefill or decoding."""
    state_bytes: int = 0
    """Bytes of all states."""
    reserved_bytes: int = 0
    """Bytes that those states may grow to; at most `Limits.max_state_bytes`."""
    tokens: int = 0
    """Tokens generated."""
    rounds: int = 0
    """Rounds run."""
    copied_rows: int = 0
    """Rows whose states were copied because others entered or left."""
    ended: Mapping[str, int] = field(default_factory=dict)
    """Number of requests that ended, by reason: "stop", "length", "canceled" and "error"."""


class Batcher:
    """Generations of one model, side by side. `submit` and `cancel` from any thread; one thread calls `step`."""

    def __init__(self, model: nn.Module, limits: Limits, prefix_cache: PrefixCache | None = None):
        for method in ("start", "step", "prefill", "cost"):
            if not hasattr(model, method):
                raise TypeError(f"model must be a decoder, but {type(model).__name__} has no method {method}")
        if model.training:
            raise ValueError("model must be in eval mode: with dropout, tokens would depend on the other rows")
        self.limits = limits
        self._model: Any = model
        self._sizes = RowSizes(model)
        self._device = next((x.device for x in model.parameters()), torch.device("cpu"))
        self._prefill = Prefill(model, limits.piece, prefix_cache, self._device)
        self._groups: dict[int, RowGroup] = {}
        self._ends = EndRate()
        self._ended: Counter[str] = Counter()
        self._copied_rows = 0
        self._statistics = BatcherStatistics()
        self._waiting: deque[BatchRow] = deque()
        self._draining = False
        self._changed = threading.Condition()  # guards the two above
        self._stepping = threading.Lock()

    def submit(self, generation: Generation) -> None:
        """Accept a request; raise QueueFullError if too many wait, ValueError if it can never run. From any thread."""
        row = self._make_row(generation)
        with self._changed:
            if generation.submitted:
                raise ValueError("this generation was submitted before; make a new one")
            if self._draining:
                raise QueueFullError("the batcher drains and takes no more requests", self._retry_after())
            if len(self._waiting) >= self.limits.max_waiting:
                raise QueueFullError(f"{len(self._waiting)} requests wait already", self._retry_after())
            generation.submitted = True
            self._waiting.append(row)
            self._changed.notify_all()

    def step(self) -> bool:
        """Run one round on this thread; return False if nothing is left to do."""
        with self._alone(), torch.inference_mode():
            self._remove_canceled()
            self._admit()
            self._add_ready()
            tokens = sum(group.step() for group in self._groups.values())
            self._remove_ended()
            self._count(tokens)
        return not self.is_idle

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing runs."""
        return not (self._waiting or self._prefill.rows or self._groups)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until there is something to do, or `timeout` seconds; return whether there is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self.is_idle, timeout)

    def drain(self) -> None:
        """Refuse new requests from now on; `step` finishes those that were accepted."""
        with self._changed:
            self._draining = True

    def abort(self, reason: str) -> None:
        """Drain, and end every request with "error: " and this reason; on the thread that calls `step`."""
        self.drain()
        with self._alone():
            with self._changed:
                waiting, self._waiting = self._waiting, deque()
            for row in (*waiting, *self._rows()):
                row.fail(reason)
            self._finish(waiting)
            self._remove_ended()
            self._count(0)

    def statistics(self) -> BatcherStatistics:
        """Return what is held and was done until the end of the last round; from any thread."""
        return replace(self._statistics, waiting=len(self._waiting))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Refuse a second thread, and a callback."""
        if not self._stepping.acquire(blocking=False):
            raise RuntimeError("a round is running already; one thread calls step and abort, and no callback does")
        try:
            yield
        finally:
            self._stepping.release()

    def _make_row(self, generation: Generation) -> BatchRow:
        """Return the row of a request, or raise ValueError."""
        ids, limits = tuple(generation.prompt), generation.limits
        if not ids:
            raise ValueError("prompt must have at least one token, which the search starts from, got none")
        if limits.start != ids[-1]:
            raise ValueError(f"limits.start={limits.start} must be the last token of the prompt, {ids[-1]}")
        tokens = self._model.embed.num_embeddings
        wrong = [x for x in (*ids, limits.end, *limits.forbidden) if not 0 <= x < tokens]
        if wrong:
            raise ValueError(f"prompt and limits must have tokens of the model, 0 to {tokens - 1}, got {wrong[0]}")
        fed, longest = len(ids) + limits.max_length - 1, int(self._model.config.max_length)
        if fed > longest:
            raise ValueError(
                f"the prompt has {len(ids)} tokens, and {limits.max_length} more exceed "
                f"the model's max_length={longest}"
            )
        row = BatchRow(generation, ids[:-1], ids[-1], self._sizes.places_for(fed))
        if self._sizes.bytes_for(row.places) > self.limits.max_state_bytes:
            raise ValueError(
                f"a state of {fed} tokens takes {self._sizes.bytes_for(row.places):,} bytes with padding, more than "
                f"max_state_bytes={self.limits.max_state_bytes:,}"
            )
        return row

    def _retry_after(self) -> float:
        return self._ends.seconds_for(len(self._waiting))

    def _rows(self) -> list[BatchRow]:
        return [*self._prefill.rows, *(row for group in self._groups.values() for row in group.rows)]

    def _remove_canceled(self) -> None:
        with self._changed:
            canceled = [row for row in self._waiting if row.generation.canceled]
            if canceled:
                self._waiting = deque(row for row in self._waiting if not row.generation.canceled)
        for row in (*canceled, *self._rows()):
            if row.generation.canceled:
                row.reason = "canceled"
        self._finish(canceled)
        self._remove_ended()

    def _remove_ended(self) -> None:
        ended = self._prefill.remove_ended()
        others_come = bool(self._waiting or self._prefill.rows)
        for places, group in list(self._groups.items()):
            ended += group.remove_ended(others_come)
            if not group.slots:
                self._copied_rows += self._groups.pop(places).copied_rows
        self._finish(ended)

    def _finish(self, rows: Iterable[BatchRow]) -> None:
        for row in rows:
            assert row.reason is not None
            self._ends.record()
            self._ended[row.reason.partition(":")[0]] += 1
            row.finish()

    def _admit(self) -> None:
        """Give states to waiting requests, first come first served, as far as the bounds allow."""
        rows, reserved = len(self._rows()), self._reserved()
        while self._waiting and rows < self.limits.max_rows:
            row = self._waiting[0]
            size = self._sizes.bytes_for(row.places)
            if reserved + size > self.limits.max_state_bytes:
                for group in self._groups.values():
                    group.drop_free_slots()
                reserved = self._reserved()
            if reserved + size > self.limits.max_state_bytes:
                return  # later requests do not overtake it
            with self._changed:
                self._waiting.popleft()
            self._prefill.add(row)
            rows, reserved = rows + 1, reserved + size

    def _add_ready(self) -> None:
        """Process a piece of the prompts, and let rows whose states are complete join those that decode."""
        arrivals: dict[int, list[Any]] = {}
        for rows, state in self._prefill.run():
            for places in sorted({row.places for row in rows}):
                own = [number for number, row in enumerate(rows) if row.places == places]
                part = state
                if len(own) < len(rows):
                    part = state.select(torch.tensor(own, device=self._device)).compact()
                arrivals.setdefault(places, []).append(([rows[number] for number in own], part))
        for places, found in arrivals.items():
            if places not in self._groups:
                self._groups[places] = RowGroup(self._model, places, self._sizes.grows, self._device)
            self._groups[places].add(found, self._spare(places, sum(len(rows) for rows, _ in found)))

    def _spare(self, places: int, arriving: int) -> int:
        """Return how many free slots a group may get for rows that follow those arriving, within the bounds."""
        follow = len(self._waiting) + len(self._prefill.rows)
        room = (self.limits.max_state_bytes - self._reserved()) // self._sizes.bytes_for(places)
        rows = self.limits.max_rows - len(self._groups[places].rows)
        return max(min(follow, room - arriving, rows - arriving), 0)

    def _reserved(self) -> int:
        total = sum(self._sizes.bytes_for(row.places) for row in self._prefill.rows)
        return total + sum(len(group.slots) * self._sizes.bytes_for(places) for places, group in self._groups.items())

    def _count(self, tokens: int) -> None:
        before, groups = self._statistics, list(self._groups.values())
        self._statistics = BatcherStatistics(
            running=len(self._rows()),
            state_bytes=self._prefill.state_bytes + sum(group.state_bytes for group in groups),
            reserved_bytes=self._reserved(),
            tokens=before.tokens + tokens,
            rounds=before.rounds + 1,
            copied_rows=self._copied_rows + sum(group.copied_rows for group in groups),
            ended=dict(self._ended),
        )
