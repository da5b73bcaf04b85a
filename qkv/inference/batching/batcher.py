"""Continuous batching: generations enter and leave a running batch between decoding steps."""

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from qkv.decode.stepper import INVALID_LOGITS, broken_rows, normalize
from qkv.inference.batching.generation import Generation
from qkv.inference.batching.limits import Limits, QueueFullError


@dataclass(frozen=True)
class BatcherStatistics:
    """What a batcher holds, and what it has done."""

    waiting: int
    running: int
    """Generations that hold a state, prompts that are being processed included."""
    state_bytes: int
    """Bytes of the states of all rows."""
    tokens: int
    """Tokens generated so far."""
    rounds: int
    """Rounds so far."""


@dataclass(eq=False)
class Row:
    """A generation with a state."""

    generation: Generation
    token: int
    position: int = 0
    state: Any = None
    prefilled: int = 0
    end: str | None = field(default=None)


class Batcher:
    """Runs many generations of one model side by side."""

    def __init__(self, model: nn.Module, limits: Limits, prefix_cache: Any = None):
        self.model: Any = model
        self.limits = limits
        self.prefix_cache = prefix_cache
        self.device = next(model.parameters()).device
        self._lock = threading.Lock()
        self._waiting: deque[Generation] = deque()
        self._draining = False
        self._prefilling: list[Row] = []
        self._rows: list[Row] = []
        self._state: Any = None
        self._tokens = self._rounds = 0

    def submit(self, generation: Generation) -> None:
        """Accept a request or raise: QueueFullError, or ValueError for one that can never run; from any thread."""
        self._check(generation)
        with self._lock:
            if self._draining:
                raise QueueFullError("the batcher is draining", 1.0)
            if len(self._waiting) >= self.limits.max_waiting:
                raise QueueFullError(f"{len(self._waiting)} requests are waiting already", 1.0)
            self._waiting.append(generation)

    def drain(self) -> None:
        """Refuse new requests; `step` finishes those that were accepted."""
        with self._lock:
            self._draining = True

    def statistics(self) -> BatcherStatistics:
        """Return what is held now and was done so far; from any thread."""
        prefilling, rows, state = list(self._prefilling), list(self._rows), self._state
        held = sum(row.state.bytes for row in prefilling if row.state is not None)
        held += 0 if state is None else state.bytes
        return BatcherStatistics(
            len(self._waiting), len(prefilling) + len(rows), held, self._tokens, self._rounds
        )

    def step(self) -> bool:
        """Run one round: drop canceled rows, admit, prefill one piece, decode one token of each row.

        Returns False when nothing is left to do.
        """
        with torch.inference_mode():
            self._cancel()
            self._admit()
            self._prefill()
            self._decode()
        self._rounds += 1
        return bool(self._waiting or self._prefilling or self._rows)

    def _check(self, generation: Generation) -> None:
        prompt, limits = generation.prompt, generation.limits
        if not len(prompt):
            raise ValueError("prompt must have at least one token, the one that the search starts from")
        if limits.start != prompt[-1]:
            raise ValueError(f"limits.start={limits.start} must be the last token of the prompt, {prompt[-1]}")
        longest = self.model.config.max_length
        if len(prompt) + limits.max_length - 1 > longest:
            raise ValueError(
                f"the prompt has {len(prompt)} tokens, and {limits.max_length} more exceed the model's "
                f"max_length={longest}"
            )

    def _cancel(self) -> None:
        with self._lock:
            canceled = [one for one in self._waiting if one.canceled]
            self._waiting = deque(one for one in self._waiting if not one.canceled)
        for one in canceled:
            _finish(one, "canceled")
        for row in (*self._prefilling, *self._rows):
            if row.generation.canceled:
                row.end = "canceled"
        self._drop_ended()

    def _drop_ended(self) -> None:
        ended = [row for row in (*self._prefilling, *self._rows) if row.end is not None]
        self._prefilling = [row for row in self._prefilling if row.end is None]
        kept = [number for number, row in enumerate(self._rows) if row.end is None]
        if len(kept) < len(self._rows):
            self._rows = [self._rows[number] for number in kept]
            self._state = self._state.select(torch.tensor(kept, device=self.device)).compact() if kept else None
        for row in ended:
            _finish(row.generation, row.end or "")

    def _admit(self) -> None:
        with self._lock:
            while self._waiting and len(self._prefilling) + len(self._rows) < self.limits.max_rows:
                generation = self._waiting.popleft()
                self._prefilling.append(Row(generation, generation.prompt[-1]))

    def _prefill(self) -> None:
        budget, ready = self.limits.piece, []
        for row in self._prefilling:
            ids = row.generation.prompt[:-1]
            if row.state is None:
                row.state = self.model.start(torch.zeros(1, 0, dtype=torch.int64, device=self.device), None)
            piece = ids[row.prefilled : row.prefilled + budget]
            if len(piece):
                row.state = self.model.prefill(torch.tensor([piece], device=self.device), row.state)
            row.prefilled += len(piece)
            budget -= len(piece)
            if row.prefilled == len(ids):
                ready.append(row)
            if budget <= 0:
                break
        if ready:
            states = ([] if self._state is None else [self._state]) + [row.state for row in ready]
            self._state = states[0].join(*states[1:])
            for row in ready:
                row.state = None
                self._prefilling.remove(row)
            self._rows = [*self._rows, *ready]

    def _decode(self) -> None:
        if not self._rows:
            return
        tokens = torch.tensor([row.token for row in self._rows], device=self.device)
        logits, self._state = self.model.step(tokens, self._state)
        for number, row in enumerate(self._rows):
            self._choose(row, logits[number : number + 1])
        self._drop_ended()

    def _choose(self, row: Row, logits: Tensor) -> None:
        generation = row.generation
        forbidden = torch.tensor(generation.limits.forbidden, dtype=torch.int64, device=self.device)
        log_probabilities = normalize(logits, forbidden)
        if broken_rows(log_probabilities):
            row.end = f"error: the model returned invalid logits: {INVALID_LOGITS}"
            return
        try:
            row.token = int(generation.choose(log_probabilities, [0], row.position))
            row.position += 1
            self._tokens += 1
            if generation.on_token is not None:
                generation.on_token(row.token, float(log_probabilities[0, row.token]))
        except Exception as error:
            row.end = f"error: {type(error).__name__}: {error}"
            return
        if row.token == generation.limits.end:
            row.end = "stop"
        elif row.position == generation.limits.max_length:
            row.end = "length"


def _finish(generation: Generation, reason: str) -> None:
    if generation.on_end is not None:
        generation.on_end(reason)


