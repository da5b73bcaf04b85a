"""What one process of a training is doing, and how long since it last moved."""

import sys
import sysconfig
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch

LONG_LIMIT = 300.0
"""Seconds without progress that a first step, a compilation, a validation and a save may take."""
WARM_STEPS = 2
"""Steps after which the usual limit holds: the first ones load kernels and data."""
PATIENCE = 10
"""A step may take this many times as long as the longest one so far."""
WINDOW = 20
"""Steps whose median is the time of a process."""
_TORCH = str(Path(torch.__file__).parent)
_OWN = str(Path(__file__).parent)
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")


def _ignore() -> None:
    pass


class Place(NamedTuple):
    """Where a thread is."""

    text: str
    """File, line and function, outside torch and the standard library."""
    in_torch: bool
    """Whether it is inside a function of torch."""
    in_collective: bool
    """Whether it is inside torch.distributed."""


class Pulse:
    """Progress of one process: written by its training loop, read by its watchdog thread.

    Time in collective calls is time spent waiting for others. The backward pass that averages gradients counts as one.
    """

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.ticks = 0
        """Signs of progress so far."""
        self.arrivals = 0
        """Collective calls that this process has reached."""
        self.waiting = False
        """Whether it is in a collective call."""
        self.step = 0
        self.activity = "the first steps"
        self.on_change: Callable[[], None] = _ignore
        """Called when another limit begins to hold."""
        self._slow = True
        self._steps = 0
        self._moved = self._began = time.perf_counter()
        self._waited = self._waited_before = 0.0
        self._longest = 0.0
        self._own: deque[float] = deque(maxlen=WINDOW)
        self._whole: deque[float] = deque(maxlen=WINDOW)

    def tick(self) -> None:
        """Record progress."""
        now = time.perf_counter()
        if not (self._slow or self.waiting):
            self._longest = max(self._longest, now - self._moved)
        self._moved = now
        self.ticks += 1

    @contextmanager
    def collective(self) -> Iterator[None]:
        """Mark a call that waits for other processes."""
        self.tick()
        self.arrivals += 1
        self.waiting, started = True, time.perf_counter()
        try:
            yield
        finally:
            self._waited += time.perf_counter() - started
            self.tick()
            self.waiting = False

    @contextmanager
    def slow(self, activity: str) -> Iterator[None]:
        """Mark work that may take minutes, such as a validation; its time is not that of a step."""
        before = self.activity, self._slow
        waited, started = self._waited, time.perf_counter()
        self.activity, self._slow = activity, True
        self.tick()
        self.on_change()
        try:
            yield
        finally:
            self.tick()
            self.activity, self._slow = before
            self._waited = waited + time.perf_counter() - started
            self.on_change()

    def begin_step(self, step: int) -> None:
        """Record that the step before this one is over."""
        self.tick()
        now = self._moved
        if self._steps:
            self._whole.append(now - self._began)
            self._own.append(now - self._began - (self._waited - self._waited_before))
        self._steps += 1
        self._began, self._waited_before, self.step = now, self._waited, step
        if self._steps > WARM_STEPS:
            self.activity, was_slow, self._slow = "a step", self._slow, False
            if was_slow:
                self.on_change()

    def limit(self, usual: float) -> float:
        """Return the seconds without progress after which this process counts as hung."""
        return max(usual, LONG_LIMIT if self._slow else PATIENCE * self._longest)

    @property
    def own_seconds(self) -> float | None:
        """Median time of a step without waiting for others; None before there are enough steps."""
        return median(self._own) if len(self._own) == WINDOW else None

    @property
    def step_seconds(self) -> float | None:
        """Median time of a step."""
        return median(self._whole) if len(self._whole) == WINDOW else None

    def place(self) -> Place:
        """Return where the training thread is."""
        frame = sys._current_frames().get(self.thread)
        in_torch = frame is not None and frame.f_code.co_filename.startswith(_TORCH)
        in_collective = False
        while frame is not None:
            name = frame.f_code.co_filename
            in_collective |= name.startswith(f"{_TORCH}/distributed")
            if not (name.startswith((_TORCH, _OWN, "<")) or _is_standard(name)):
                return Place(f"{_short(name)}:{frame.f_lineno} in {frame.f_code.co_name}", in_torch, in_collective)
            frame = frame.f_back
        return Place("an unknown place", in_torch, in_collective)


def _is_standard(name: str) -> bool:
    return name.startswith(_STANDARD_LIBRARY) and "site-packages" not in name


def _short(name: str) -> str:
    """Return the last two parts of a path."""
    return "/".join(Path(name).parts[-2:])
