"""Which process of a training is hung, and which is slow, from what all of them publish."""

from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

from qkv.train.failures.pulse import Pulse

SLOW_FACTOR = 2.0
"""A process that takes this many times as long as the median of the others is a straggler."""
SLOW_SHARE, SLOW_SECONDS = 0.1, 0.005
"""Part of a step, and seconds, that it must lose by that: rank 0 writes metrics, which takes a millisecond."""
ASLEEP = 5.0
"""Seconds between two looks after which this process was stopped itself, and knows nothing of the others."""


@dataclass(frozen=True)
class Beat:
    """What a process publishes once a second."""

    number: int
    """Counts up, so that others see that the process runs."""
    ticks: int
    arrivals: int
    waits: bool
    """Whether it waits for other processes, as far as it can tell."""
    step: int
    activity: str
    limit: float
    """Seconds without progress after which it counts as hung."""
    place: str
    own_seconds: float | None
    step_seconds: float | None
    ended: bool = False


def take_beat(pulse: Pulse, number: int, usual: float) -> Beat:
    """Return the beat of this process now."""
    place = pulse.place()
    return Beat(
        number=number,
        ticks=pulse.ticks,
        arrivals=pulse.arrivals,
        waits=place.in_torch and (pulse.waiting or place.in_collective),
        step=pulse.step,
        activity=pulse.activity,
        limit=pulse.limit(usual),
        place=place.text,
        own_seconds=pulse.own_seconds,
        step_seconds=pulse.step_seconds,
    )


class Failure(NamedTuple):
    """A process that ended the training, and why."""

    rank: int
    step: int
    cause: str


class Straggler(NamedTuple):
    """A process whose own work of a step takes longer than that of the others."""

    rank: int
    seconds: float
    others: float


@dataclass(frozen=True)
class _Seen:
    beat: Beat
    heard: float
    """When its number last changed."""
    moved: float
    """When it last made progress."""


class Observer:
    """What one process knows of the others, by its own clock."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}
        self._looked: float | None = None

    def look(self, now: float, beats: dict[int, Beat]) -> None:
        """Take note of the beats of all processes that published one."""
        if self._looked is not None and now - self._looked > ASLEEP:
            self._seen = {rank: replace(seen, heard=now, moved=now) for rank, seen in self._seen.items()}
        self._looked = now
        for rank, beat in beats.items():
            before = self._seen.get(rank)
            if before is None:
                self._seen[rank] = _Seen(beat, now, now)
                continue
            heard = before.heard if beat.number == before.beat.number else now
            moved = before.moved if beat.ticks == before.beat.ticks and not beat.ended else now
            self._seen[rank] = _Seen(beat, heard, moved)

    def find_silent(self, now: float, seconds: float) -> Failure | None:
        """Return the first process that has not published for so long, and has not ended its training."""
        for rank, seen in sorted(self._seen.items()):
            if not seen.beat.ended and now - seen.heard > seconds:
                cause = f"no answer for {now - seen.heard:.0f} s: the process is stopped, or blocked in native code"
                return Failure(rank, seen.beat.step, cause)
        return None

    def find_hung(self, now: float) -> Failure | None:
        """Return the process that the others wait for, if it has not moved for longer than its limit.

        First one that does not wait for others, then the one that has reached the fewest collective calls. If all wait
        and have reached the same call, nobody can be named: rank -1.
        """
        running = {rank: seen for rank, seen in self._seen.items() if not seen.beat.ended}
        if not running:
            return None
        suspects = {rank: seen for rank, seen in running.items() if not seen.beat.waits}
        suspects = suspects or running
        rank = min(suspects, key=lambda one: (suspects[one].beat.arrivals, suspects[one].moved))
        seen = suspects[rank]
        seconds = now - seen.moved
        if seconds <= seen.beat.limit:
            return None
        doing = seen.beat.activity
        if seen.beat.waits and len({one.beat.arrivals for one in running.values()}) == 1:
            cause = (
                f"no process made progress for {seconds:.0f} s in {doing}: all wait, rank {rank} at {seen.beat.place}"
            )
            return Failure(-1, seen.beat.step, cause)
        cause = f"no progress for {seconds:.0f} s in {doing}, at {seen.beat.place}"
        return Failure(rank, seen.beat.step, cause)


def find_stragglers(beats: dict[int, Beat]) -> list[Straggler]:
    """Return the processes whose own time per step is more than twice the median of the others."""
    own = {rank: beat.own_seconds for rank, beat in beats.items() if beat.own_seconds is not None}
    found = []
    for rank, seconds in own.items():
        others = [one for other, one in own.items() if other != rank]
        whole = beats[rank].step_seconds
        if not others or whole is None:
            continue
        usual = median(others)
        if seconds > SLOW_FACTOR * usual and seconds - usual > max(SLOW_SHARE * whole, SLOW_SECONDS):
            found.append(Straggler(rank, seconds, usual))
    return found
