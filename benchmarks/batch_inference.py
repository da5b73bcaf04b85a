"""A batch job with 1 and with 2 processes of one thread each: `qkv predict pronounce --in words.txt --out folder`.

    python -m benchmarks.batch_inference --out benchmarks/results/batch_inference_cpu.json

The words are those of CMUdict, from the beginning again when they end; the model is the bundled network. Jobs take
turns in one run: 1 process, 2 processes under torchrun, and again. Seconds are those of a command from its start to its
end, Python and torch included. The load is what other programs took of the cores in the second before each job. The
files of all jobs must be the same, byte for byte.
"""

import argparse
import json
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.machine import about
from qkv.storage import cmudict_file

RESULTS = Path(__file__).parent / "results" / "batch_inference_cpu.json"
BAR = 1.7
"""Least ratio of the speeds of 2 processes and 1."""
COMMANDS = {
    1: [sys.executable, "-m", "qkv"],
    2: [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "--", "qkv"],
}


def main() -> None:
    """Measure, compare, write and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--words", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--part-lines", type=int, default=10_000)
    parser.add_argument("--search", choices=("beam", "greedy"), default="beam")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        jobs = list(_run_jobs(given, Path(folder)))
    result = {**_described(given), **summarize(jobs), "jobs": [_without_files(job) for job in jobs]}
    given.out.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))


def summarize(jobs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians by number of processes, the ratio of each round and whether the files are the same."""
    seconds = {count: [job["seconds"] for job in jobs if job["processes"] == count] for count in COMMANDS}
    ratio = median(seconds[1]) / median(seconds[2])
    identical = all(job["files"] == jobs[0]["files"] for job in jobs)
    return {
        "seconds": {str(count): median(found) for count, found in seconds.items()},
        "ratio": ratio,
        "ratio of each round": [one / two for one, two in zip(seconds[1], seconds[2], strict=True)],
        "identical": identical,
        "bar": BAR,
        "passed": ratio >= BAR and identical,
    }


def table(result: dict[str, Any]) -> str:
    """Return seconds and words per second, for docs/scale.md."""
    lines = ["| processes | seconds | words/s |", "|---|---|---|"]
    for count, seconds in result["seconds"].items():
        lines.append(f"| {count} | {seconds:.0f} | {result['words'] / seconds:,.0f} |")
    loads = [job["busy cores before"] for job in result["jobs"]]
    files = "the same files" if result["identical"] else "DIFFERENT FILES"
    said = f"2 processes are {result['ratio']:.2f} times as fast, with {files}"
    return "\n".join([*lines, "", f"{said}. Busy cores before: {max(loads):.2f}."])


def _described(given: argparse.Namespace) -> dict[str, Any]:
    command = shlex.join(["python", "-m", "benchmarks.batch_inference", *sys.argv[1:]])
    settings = {"words": given.words, "part_lines": given.part_lines, "search": given.search, "threads per process": 1}
    return {**about(), "command": command, **settings}


def _run_jobs(given: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    source = folder / "words.txt"
    source.write_text("".join(f"{word}\n" for word in islice(cycle(_words()), given.words)))
    options = ["--in", str(source), "--part-lines", str(given.part_lines), "--search", given.search, "--json"]
    for number in range(given.rounds):
        for processes in COMMANDS:
            yield _run_job(processes, options, folder / f"{number}-{processes}")


def _run_job(processes: int, options: list[str], out: Path) -> dict[str, Any]:
    """Return seconds, processor time and load of a job, and the checksums of its parts."""
    busy, load = _busy_cores(), os.getloadavg()[0]
    command = [*COMMANDS[processes], "predict", "pronounce", *options, "--device", "cpu", "--out", str(out)]
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, stdout=subprocess.PIPE)
    seconds, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{processes} processes: {seconds:.1f} s, busy cores before: {busy:.2f}", file=sys.stderr)
    return {
        "processes": processes,
        "seconds": seconds,
        "processor seconds": processor,
        "lines_per_second": json.loads(done.stdout)["lines_per_second"],
        "busy cores before": busy,
        "load average before": load,
        "files": {path.name: json.loads(path.read_text())["sha256"] for path in sorted((out / "state").glob("*.json"))},
    }


def _words() -> list[str]:
    entries = (line.split(maxsplit=1)[0] for line in cmudict_file.read_text().splitlines() if line)
    return [word for word in entries if "(" not in word]


def _busy_cores() -> float:
    """Return how many cores all programs used during one second, where the system counts it."""

    def ticks() -> int:
        numbers = [int(part) for part in Path("/proc/stat").read_text().split("\n")[0].split()[1:]]
        return sum(numbers) - numbers[3] - numbers[4]  # without idle and waiting for a disk

    before, started = ticks(), time.monotonic()
    time.sleep(1)
    return (ticks() - before) / os.sysconf("SC_CLK_TCK") / (time.monotonic() - started)


def _without_files(job: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in job.items() if name != "files"}


if __name__ == "__main__":
    main()
