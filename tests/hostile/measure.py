"""Run a command in a forked process that has torch already: its words, CPU seconds and growth of memory."""

import io
import json
import os
import resource
import signal
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

import torch

import qkv.cli

MAX_SECONDS = 2.0
MAX_BYTES = 500 * 10**6
GUARD_SECONDS = 20
GUARD_BYTES = 4 * 2**30
"""Address space beyond that of this process, so that a failure does not take the whole machine."""


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str
    seconds: float
    """Of CPU time, which other processes do not change; what only waits is ended after `GUARD_SECONDS`."""
    bytes: int
    """Growth of the resident memory."""

    @property
    def refused(self) -> bool:
        """Whether it ended as wrong use, with one sentence, possibly after warnings about lines or inputs."""
        lines = self.stderr.strip().splitlines()
        in_words = bool(lines) and lines[-1].startswith(("qkv: ", "│", "╰", "Error"))
        return self.code == 2 and in_words and "Traceback" not in self.stderr and "bug in qkv" not in self.stderr


def run(arguments: list[str | bytes], folder: Path, environment: dict[str, str]) -> Outcome:
    """Fork, run `qkv arguments` in this folder, and wait for it."""
    outputs = [folder / name for name in ("stdout.txt", "stderr.txt", "start.json")]
    torch.set_num_threads(1)  # threads do not survive a fork
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if not process:
        _child(arguments, folder, environment, outputs)
    _, status, usage = os.wait4(process, 0)
    seconds = usage.ru_utime + usage.ru_stime
    stdout, stderr = (path.read_text("utf-8", errors="replace") for path in outputs[:2])
    before = json.loads(outputs[2].read_text())
    code = os.waitstatus_to_exitcode(status)
    return Outcome(code, stdout, stderr, seconds, max(usage.ru_maxrss * 1024 - before, 0))


def _child(arguments: list[str | bytes], folder: Path, environment: dict[str, str], outputs: list[Path]) -> None:
    code = 70
    try:
        os.environ.update(environment, COLUMNS="200", TOKENIZERS_PARALLELISM="false")
        for number, path in enumerate(outputs[:2], 1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdin = io.TextIOWrapper(io.FileIO(0), "utf-8", "surrogateescape")
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w"), "utf-8")
        sys.stderr = io.TextIOWrapper(io.FileIO(2, "w"), "utf-8", "backslashreplace")
        signal.alarm(GUARD_SECONDS)
        size, resident = (
            int(pages) * resource.getpagesize() for pages in Path("/proc/self/statm").read_text().split()[:2]
        )
        resource.setrlimit(resource.RLIMIT_AS, (size + GUARD_BYTES,) * 2)
        outputs[2].write_text(json.dumps(resident))
        sys.argv = ["qkv", *(os.fsdecode(argument) for argument in arguments)]
        os.chdir(folder)
        try:
            qkv.cli.main()
            code = 0
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:  # noqa: BLE001 - the parent reports it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
