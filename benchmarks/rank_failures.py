"""What a training says when one of its processes fails: `python -m benchmarks.rank_failures --out FILE`.

Two processes under torchrun run `qkv train`. In the 30th step rank 1 fails. Measured are the seconds until the job has
ended, its exit code, and what each rank prints.
"""

import argparse
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.machine import about
from qkv import runs
from qkv.cli import main as run_command
from qkv.train.objective import Objective, Tensors

FAILING_RANK, FAILING_STEP = 1, 30
MAX_SECONDS = 150
RESULTS = Path(__file__).parent / "results" / "rank_failures_cpu.json"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
TRAIN = (
    *("train", "recall", "--steps", "100000", "--device", "cpu", "--set", "model.dim=8"),
    *("--set", "train.batch_size=2", "--set", "train.validate_every=1000", "--set", "data.pairs=4"),
    *("--set", "data.length=16", "--set", "data.vocabulary=32", "--set", "data.examples=4"),
)


def _raise() -> None:
    raise ValueError("row 7 of the batch has no target")


def _hang() -> None:
    time.sleep(3600)


def _block() -> None:
    """Search for minutes in native code that does not let other threads run."""
    re.match(r"(a+)+$", 40 * "a" + "b")


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _run_out_of_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (2**36, 2**36))
    torch.zeros(2**36)


FAILURES: dict[str, Callable[[], None]] = {
    "raises": _raise,
    "hangs": _hang,
    "hangs in native code": _block,
    "is killed": _kill,
    "runs out of memory": _run_out_of_memory,
}


def run_worker(how: str, moment: Path, arguments: list[str]) -> None:
    """Run the command in this process; in the failing step of the failing rank write down the time, and fail."""
    real = runs.make_objective

    def make(*given: Any) -> Objective:
        objective, calls = real(*given), 0

        def loss(model: nn.Module, tensors: Tensors) -> Tensor:
            nonlocal calls
            calls += 1
            if os.environ["RANK"] == str(FAILING_RANK) and calls == FAILING_STEP and not moment.exists():
                moment.write_text(str(time.time()))
                FAILURES[how]()
            return objective.loss(model, tensors)

        return replace(objective, loss=loss)

    runs.make_objective = make  # type: ignore[assignment]
    sys.argv = ["qkv", *arguments]
    run_command()


def measure(how: str, *options: str) -> dict[str, Any]:
    """Return seconds from the failure to the end of the job, its exit code, and what each rank printed last."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        logs = ["--log-dir", str(folder / "logs"), "--redirects", "3"]
        worker = ["-m", "--", "benchmarks.rank_failures", "--worker", how, str(folder / "moment")]
        line = [*TORCHRUN, *logs, *worker, *TRAIN, "--run", str(folder / "run"), *options]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        # a session of its own, so that no process outlives a failed measurement
        job = subprocess.Popen(
            line, env=environment, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            job.wait(MAX_SECONDS)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
        ended = time.time()
        said = {rank: (path.read_text().splitlines() or [""])[-1] for rank, path in _errors(folder / "logs").items()}
        seconds = ended - float((folder / "moment").read_text())
    return {"failure": how, "seconds": seconds, "exit_code": job.returncode, "rank_0": said[0], "rank_1": said[1]}


def _errors(folder: Path) -> dict[int, Path]:
    return {int(path.parent.name): path for path in folder.rglob("stderr.log")}


def table(result: dict[str, Any]) -> str:
    """Return a line per failure."""
    lines = ["| rank 1 | seconds | exit code | rank 0 says | rank 1 says |", "|---|---|---|---|---|"]
    for found in result["failures"]:
        said = [found[rank].removeprefix("qkv: ") if _is_sentence(found[rank]) else "" for rank in ("rank_0", "rank_1")]
        lines.append(f"| {found['failure']} | {found['seconds']:.0f} | {found['exit_code']} | {' | '.join(said)} |")
    return "\n".join(lines)


def _is_sentence(line: str) -> bool:
    return line.startswith("qkv: ")


def main() -> None:
    """Measure all failures, write and print the result."""
    if sys.argv[1:2] == ["--worker"]:
        run_worker(sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--only", choices=FAILURES, help="measure one failure, write nothing")
    options = parser.parse_args()
    if options.only:
        print(json.dumps(measure(options.only), indent=1))
        return
    command = "python -m benchmarks.rank_failures"
    result = {**about(), "command": command, "failures": [measure(how) for how in FAILURES]}
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))


if __name__ == "__main__":
    main()
