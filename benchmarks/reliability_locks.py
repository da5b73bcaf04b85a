"""Two trainings started at the same moment in one new folder, 50 times: `python -m benchmarks.reliability_locks`.

Right is: one trains to the end with its own settings and its own weights, the other is refused in one sentence.
Writes benchmarks/results/reliability_locks.json.
"""

import json
import tempfile
import time
from collections import Counter
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from benchmarks.command_process import start
from benchmarks.machine import about

RESULTS = Path(__file__).parent / "results" / "reliability_locks.json"
TRIES = 50
REFUSALS = ("another process is training in this run folder", "there is a run already")


def _train(folder: Path, seed: int, log: Path, moment: float = 0.0) -> ForkServerProcess:
    options = ["--steps", "20", "--set", "train.validate_every=10", "--seed", str(seed), "--device", "cpu", "--json"]
    return start(["train", "xor", "--run", str(folder), *options], log, moment)


def _try(folder: Path, expected: dict[int, bytes]) -> str:
    """Return what happened, as a word."""
    moment = time.time() + 0.3
    logs = [folder.with_name(f"{folder.name}-{seed}.log") for seed in expected]
    both = [_train(folder, seed, log, moment) for seed, log in zip(expected, logs, strict=True)]
    for process in both:
        process.join(120)
    codes = [process.exitcode for process in both]
    if sorted(codes, key=str) != [0, 2]:
        return f"exit codes {codes}"
    lines = logs[codes.index(2)].read_text().splitlines()
    if len(lines) != 1 or not any(text in lines[0] for text in REFUSALS):
        return "not refused in one sentence"
    winner = list(expected)[codes.index(0)]
    if json.loads((folder / "config.json").read_text())["train"]["seed"] != winner:
        return "settings of the other"
    same = (folder / "model.safetensors").read_bytes() == expected[winner]
    return next(text for text in REFUSALS if text in lines[0]) if same else "other weights"


def main() -> None:
    """Try, count, write and print the result."""
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as temporary:
        folder, expected = Path(temporary), {}
        for seed in (1, 2):
            process = _train(folder / f"alone-{seed}", seed, folder / "alone.log")
            process.join()
            expected[seed] = (folder / f"alone-{seed}" / "model.safetensors").read_bytes()
        for number in range(TRIES):
            outcomes[_try(folder / str(number), expected)] += 1
    right = sum(outcomes[text] for text in REFUSALS)
    result = {"tries": TRIES, "right": right, "outcomes": dict(outcomes)}
    command = "python -m benchmarks.reliability_locks"
    RESULTS.write_text(json.dumps({**about(), "command": command, **result}, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
