"""Single bit flips in the files of a run: `python -m benchmarks.bit_flips`.

A small run is trained. Then one random bit of one file is flipped in a copy of it, and the copy is used:

    a file of the finished run       the run is loaded and predicts
    a file of its last checkpoint    training is resumed from it, to the end
    a file of the cached tokens      they are read to train on

A flip is `refused` if an error in words names it, `recovered` if damage was reported and the result is bit-identical,
and `harmless` if nothing was reported and the result is bit-identical. All else is `silent` or a `crash`. Each file
gets the same number of flips. Writes benchmarks/results/bit_flips.json.
"""

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import about
from qkv import runs
from qkv.cli import app
from qkv.data import TokenFile, Tokenizer
from qkv.errors import QkvError, QkvWarning
from qkv.inference import PredictOptions
from qkv.tasks import tasks
from qkv.train import Loop, Run

RESULTS = Path(__file__).parent / "results" / "bit_flips.json"
SIZES = {"dim": 16, "heads": 2, "hidden_dim": 16, "encoder_layers": 1, "decoder_layers": 1, "max_length": 24}
GOOD = ("refused", "recovered", "harmless")
TEXTS = [f"document {number} has {number % 7} words " * 40 for number in range(60)]

Outcome = tuple[str, str]
"""refused, recovered, harmless, silent or crash; and the message."""


def train(folder: Path) -> Path:
    """Train a run of 6 steps with the command `qkv train`; its checkpoints are of steps 4 and 6."""
    folder.mkdir(parents=True, exist_ok=True)
    words = ["".join("abcdef"[(7 * n + 3 * k * k) % 6] for k in range(2 + n % 5)) for n in range(60)]
    lines = dict.fromkeys(f"{word}\t{' '.join(word[::-1].upper())}\n" for word in words)
    (folder / "words.tsv").write_text("".join(lines))
    given = {**{f"model.{name}": value for name, value in SIZES.items()}, "train.validate_every": 2}
    settings = [part for name, value in given.items() for part in ("--set", f"{name}={value}")]
    command = ["train", "pairs", "--train-file", str(folder / "words.tsv"), "--steps", "6", "--json"]
    place = ["--run", str(folder / "run"), "--set", "train.batch_size=4", "--device", "cpu"]
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        app([*command, *place, *settings], standalone_mode=False)
    return folder / "run"


def predict(folder: Path) -> tuple[Any, ...]:
    """Load a run: its settings, vocabulary, weights and answers."""
    config, task, model = runs.load(folder)
    weights = {name: value.numpy().tobytes() for name, value in model.state_dict().items()}
    predictor = task.predictor(model, PredictOptions(best=2))
    assert predictor is not None
    return config.to_record(), task.vocabulary(), weights, predictor.predict(["abc", "fed"], range(2))


def resume(folder: Path) -> tuple[Any, ...]:
    """Resume a run from its last checkpoint and train to the end: the model, the losses and the scores."""
    run = Run(folder)
    run.weights.unlink(missing_ok=True)  # it must come from the checkpoint
    config = runs.read_config(run, resume=True)
    runs.require_unchanged(folder, "train another run")
    task = tasks[config.task].load(config.data)
    loop = Loop(runs.make_objective(config, task, runs.build(config, task)), config.train, run)
    loop.resume()
    loop.train()
    lines = run.read_metrics()
    for line in lines:
        if line.get("event") == "damaged_checkpoint":
            warnings.warn(line["message"], QkvWarning, stacklevel=1)
    kept = [(line["step"], line.get("loss"), line.get("score")) for line in lines if "loss" in line or "score" in line]
    return run.weights.read_bytes(), kept


def read_tokens(folder: Path) -> tuple[Any, ...]:
    """Read all cached tokens as training does."""
    file = TokenFile(folder, TEXTS, Tokenizer.train(TEXTS, "characters", 40))
    blocks = file.blocks(10**6)
    return tuple(file.read(0, blocks[-1].end).tolist())


def files_of(folder: Path, under: str = ".") -> list[str]:
    """Return the files with contents that lie directly in a folder below the copy."""
    found = sorted(path for path in (folder / under).iterdir() if path.is_file() and path.stat().st_size)
    return [str(path.relative_to(folder)) for path in found]


def flip(path: Path, draw: random.Random) -> tuple[int, int]:
    """Flip a random bit; return the byte and the bit."""
    data = bytearray(path.read_bytes())
    byte, bit = draw.randrange(len(data)), draw.randrange(8)
    data[byte] ^= 1 << bit
    path.write_bytes(data)
    return byte, bit


def judge(use: Callable[[Path], tuple[Any, ...]], folder: Path, expected: tuple[Any, ...]) -> Outcome:
    """Use a damaged folder and compare the result with that of the intact one."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = use(folder)
        except (QkvError, ValueError) as error:
            return "refused", str(error)
        except Exception as error:  # noqa: BLE001 - a user would see a traceback
            return "crash", repr(error)
    said = [str(one.message) for one in caught if issubclass(one.category, QkvWarning)]
    if found != expected:
        return "silent", ""
    return ("recovered", said[0]) if said else ("harmless", "")


def flip_files(
    source: Path, names: list[str], use: Callable[[Path], tuple[Any, ...]], flips: int, seed: int
) -> dict[str, Any]:
    """Flip bits of these files in turn, each in a fresh copy; return the outcomes by file, and the bad ones."""
    draw, counts, bad = random.Random(seed), {name: Counter[str]() for name in names}, []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / source.name
        shutil.copytree(source, folder)
        expected = use(folder)
        for number in range(flips):
            shutil.rmtree(folder)
            shutil.copytree(source, folder)
            name = names[number % len(names)]
            byte, bit = flip(folder / name, draw)
            outcome, message = judge(use, folder, expected)
            counts[name][outcome] += 1
            if outcome not in GOOD:
                bad.append({"file": name, "byte": byte, "bit": bit, "outcome": outcome, "message": message})
    return {"flips": flips, "outcomes": {name: dict(count) for name, count in counts.items()}, "bad": bad}


def measure(place: Path, flips: int, token_flips: int, seed: int = 0) -> dict[str, Any]:
    """Train a run and flip bits: half of `flips` in the finished run, half in its last checkpoint."""
    run, tokens = train(place / "trained"), place / "tokens"
    read_tokens(tokens)
    wait_for_writer()
    checkpoint = files_of(run, "checkpoints/step-00000006")
    sets = {
        "finished run": flip_files(run, files_of(run), predict, flips - flips // 2, seed),
        "last checkpoint": flip_files(run, checkpoint, resume, flips // 2, seed + 1),
        "cached tokens": flip_files(tokens, ["index", "tokens"], read_tokens, token_flips, seed + 2),
    }
    totals = dict.fromkeys((*GOOD, "silent", "crash"), 0)
    for found in sets.values():
        for count in found["outcomes"].values():
            for outcome, times in count.items():
                totals[outcome] += times
    return {"flips": sum(found["flips"] for found in sets.values()), "totals": totals, "sets": sets}


def wait_for_writer(seconds: float = 10) -> None:
    """Wait until the thread that wrote the tokens has ended."""
    end = time.monotonic() + seconds
    while any(thread.name == "tokenize" for thread in threading.enumerate()) and time.monotonic() < end:
        time.sleep(0.02)


def table(result: dict[str, Any]) -> str:
    """Return the result file as Markdown."""
    lines = ["| files of | flips | refused | recovered | harmless | silent or crash |", "|---|---|---|---|---|---|"]
    for name, found in result["sets"].items():
        total = Counter[str]()
        for count in found["outcomes"].values():
            total.update(count)
        cells = [found["flips"], *(total[outcome] for outcome in GOOD), total["silent"] + total["crash"]]
        lines.append(f"| {name} | " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measure, write the result file, and exit with 3 if a flip was silent or crashed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flips", type=int, default=200, help="in the run and its checkpoint (default: 200)")
    parser.add_argument("--token-flips", type=int, default=40, help="in cached tokens (default: 40)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as place:
        found = measure(Path(place), given.flips, given.token_flips, given.seed)
    command = f"python -m benchmarks.bit_flips --flips {given.flips} --token-flips {given.token_flips}"
    RESULTS.write_text(json.dumps({**about(), "command": command, **found}, indent=1) + "\n")
    print(table(found))
    sys.exit(3 if found["totals"]["silent"] or found["totals"]["crash"] else 0)


if __name__ == "__main__":
    main()
