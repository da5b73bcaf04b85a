"""The watchdog of a training in several processes.

    each process, once a second     publishes its pulse in torchrun's store, and looks whether another has failed
    rank 0                          names the process that is hung, and the one that is slow
    the others                      look whether rank 0 still answers

The process that failed first says why, and stores it. The others end, too, and quote it. There is no collective call in
any of this, so it works while the processes wait in one.
"""

import faulthandler
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, replace
from types import TracebackType
from typing import Any, NoReturn

import torch.distributed as dist
from torch.distributed import distributed_c10d

from qkv.errors import QkvError, is_out_of_memory
from qkv.train.failures.causes import CONTINUE, describe_cause, is_lost_connection, out_of_memory_error
from qkv.train.failures.pulse import Pulse
from qkv.train.failures.verdict import Beat, Failure, Observer, Straggler, find_stragglers, take_beat
from qkv.train.signals import Interrupted

PERIOD = 1.0
"""Seconds between two looks."""
GRACE = 10.0
"""Seconds that a process has to find out by itself that another has failed."""
SILENCE = 4.0
"""Seconds without a word after which a process is dead, once a connection to one was lost."""
EXIT_CODE = 2
_trainings = itertools.count()


def end_process(sentence: str) -> NoReturn:
    """Print the sentence and end this process at once: its main thread is stuck and cannot raise an error."""
    sys.stderr.write(f"qkv: {sentence}\n")
    sys.stderr.flush()
    os._exit(EXIT_CODE)


class Watchdog:
    """Context of a training: ends the process when another has failed, or when this one or another is hung.

    `limit` are the seconds without progress of a usual step, 0 for no limit. An error that leaves the context is stored
    for the other processes. With one process nothing is watched.
    """

    def __init__(self, pulse: Pulse, rank: int, world_size: int, limit: float, end: Callable[[str], Any] = end_process):
        self.pulse, self.rank, self.world_size, self.limit, self.end = pulse, rank, world_size, limit, end
        self.observer = Observer()
        self._stragglers: list[Straggler] = []
        self._named: set[int] = set()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._number = 0
        self._failed_at = 0.0
        self._explaining = False
        self._null: Any = None

    def __enter__(self) -> "Watchdog":
        self.pulse.thread = threading.get_ident()
        if self.world_size > 1:
            store = distributed_c10d._get_default_store().clone()  # type: ignore[attr-defined]
            # one training after the other in the same processes: each has its own keys
            self.store = dist.PrefixStore(f"training-{next(_trainings)}", store)  # type: ignore[attr-defined]
            self._null = open(os.devnull, "w")  # as long as the thread runs
            self._publish()
            self.pulse.on_change = self._set_timer
            self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._explain(error)
        finally:
            self._stop()

    def stragglers(self) -> list[Straggler]:
        """Return the slow processes that were found since the last call, each one once per training."""
        found, self._stragglers = self._stragglers, []
        return found

    def _explain(self, error: BaseException | None) -> None:
        """Raise the error that the user should see instead of this one, if there is a better one."""
        if error is None or isinstance(error, Interrupted) or not isinstance(error, Exception):
            return
        self._explaining = True
        alone = self._thread is None
        if not alone and is_lost_connection(error):
            raise QkvError(f"rank {self.rank}: {self._find_cause()}; {CONTINUE}") from error
        where = f" in step {self.pulse.step}" if alone else ""  # else it is in the note
        better = out_of_memory_error(error, where) if is_out_of_memory(error) else error
        if not alone:
            better.add_note(f"rank {self.rank}, step {self.pulse.step}")
            self._store(Failure(self.rank, self.pulse.step, describe_cause(better)))
        if better is not error:
            raise better from error

    def _find_cause(self) -> str:
        """Return why a connection was lost: what the process that failed has stored, or which one is silent."""
        end = time.monotonic() + 2 * SILENCE
        with suppress(RuntimeError):  # the store is gone
            while time.monotonic() < end:
                failure = self._stored()
                if failure is not None and failure.rank != self.rank:
                    return _quote(failure)
                self.observer.look(time.monotonic(), self._beats(range(self.world_size)))
                dead = self.observer.find_silent(time.monotonic(), SILENCE)
                if dead is not None and dead.rank != self.rank:
                    return (
                        f"rank {dead.rank} ended in step {self.pulse.step} without an error: killed, or out of memory"
                    )
                time.sleep(PERIOD / 4)
        return "another process of this training ended"

    def _watch(self) -> None:
        with suppress(RuntimeError):  # the store is gone: the connections between the processes are closed, too
            while not self._stopped.wait(PERIOD):
                self._publish()
                if not self._explaining:
                    self._judge()
                    self._end_after_failure()

    def _publish(self, **changes: Any) -> None:
        self._number += 1
        beat = replace(take_beat(self.pulse, self._number, self.limit), **changes)
        self.store.set(f"pulse-{self.rank}", json.dumps(asdict(beat)))
        if not beat.ended:
            self._set_timer()

    def _set_timer(self) -> None:
        """Set a timer in C, which ends the process if native code blocks the interpreter, and so the thread."""
        if self.limit:
            faulthandler.dump_traceback_later(self.pulse.limit(self.limit) + GRACE / 2, exit=True, file=self._null)

    def _beats(self, ranks: Iterable[int]) -> dict[int, Beat]:
        """Return the last beats of these processes; one that has just started may have none."""
        keys = {rank: f"pulse-{rank}" for rank in ranks}
        return {rank: Beat(**json.loads(self.store.get(key))) for rank, key in keys.items() if self.store.check([key])}

    def _judge(self) -> None:
        """Store the process that is hung; on rank 0 find stragglers, too."""
        beats = self._beats(range(self.world_size) if self.rank == 0 else (0,))
        now = time.monotonic()
        self.observer.look(now, beats)
        if self.limit:
            silence = self.pulse.limit(self.limit)  # the last word of a silent process may be from before this step
            hung = self.observer.find_silent(now, silence) or (self.observer.find_hung(now) if self.rank == 0 else None)
            if hung is not None:
                self._store(hung._replace(step=self.pulse.step))
        if self.rank == 0:
            new = [one for one in find_stragglers(beats) if one.rank not in self._named]
            self._named.update(one.rank for one in new)
            self._stragglers += new

    def _end_after_failure(self) -> None:
        """End this process if it is the one that is hung, or if it does not notice that another one failed."""
        failure = self._stored()
        if failure is None:
            return
        if failure.rank == self.rank:
            self.end(f"rank {self.rank}, step {failure.step}: {failure.cause}; {CONTINUE}")
        self._failed_at = self._failed_at or time.monotonic()
        if failure.rank < 0 or time.monotonic() - self._failed_at > GRACE:
            self.end(f"rank {self.rank}: {_quote(failure)}; {CONTINUE}")

    def _stored(self) -> Failure | None:
        """Return the first failure of any process."""
        return Failure(*json.loads(self.store.get("failure"))) if self.store.check(["failure"]) else None

    def _store(self, failure: Failure) -> None:
        """Store a failure unless there is one."""
        with suppress(RuntimeError):  # the store is gone
            self.store.compare_set("failure", "", json.dumps(failure))

    def _stop(self) -> None:
        if self._thread is None:
            return
        self._stopped.set()
        self._thread.join()
        del self.pulse.on_change
        faulthandler.cancel_dump_traceback_later()
        self._null.close()
        with suppress(RuntimeError):  # the store is gone
            self._publish(ended=True)


def _quote(failure: Failure) -> str:
    """Return the failure of another process as part of a sentence."""
    return failure.cause if failure.rank < 0 else f"rank {failure.rank} failed in step {failure.step}: {failure.cause}"
