"""Models on the standard split of CMUdict: `python -m benchmarks.compare_pronounce ablation --train-file ...`.

    ablation   an LSTM without attention, the same with additive attention, and a Transformer whose self-attention
               (of encoder and decoder) is softmax, Taylor of order 2, or linear

Three learning rates a contestant with the first seed, the best by the loss on held-out words; then the
other seeds with it; then figures on the test words, greedy and by a beam. Trainings are processes side
by side in the folder of one `qkv compare`, which in the end collects them. When the minutes are over they
are stopped, each at a checkpoint; the same command continues from there.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.comparison import write_result
from qkv.compare.candidates import Candidate, Grid, make_candidates
from qkv.compare.comparison import Comparison, ComparisonSettings
from qkv.compare.trial import choose_best, folder_name
from qkv.tasks import tasks
from qkv.train import Interrupted

RESULTS = Path(__file__).parent / "results"
RATES = (0.002, 0.004, 0.008)
SEEDS = 3
BEAM = 5
UNFINISHED = 75
"""Exit code when the minutes were not enough (EX_TEMPFAIL)."""


@dataclass(frozen=True)
class Choice:
    """Who competes, and with what in common."""

    field: Grid
    model: dict[str, Any]
    train: dict[str, Any]
    file: str


LSTMS = ("recurrent:attention=none;dim=256", "recurrent:attention=additive;dim=256")
TRANSFORMERS = tuple(
    f"encoder_decoder:attention={kind};encoder_layers=3;hidden_dim=512" for kind in ("softmax", "taylor", "linear")
)
CHOICES = {
    "ablation": Choice(
        Grid(models=",".join((*LSTMS, *TRANSFORMERS))),
        {"dropout": 0.1},
        {"steps": 4000, "batch_size": 512, "validate_every": 1000},
        "pronounce_lstm_transformer",
    ),
}


@dataclass(frozen=True)
class Work:
    """One training: which contestant, with which rate and seed."""

    contestant: int
    rate: float
    seed: int

    def arguments(self) -> list[str]:
        """Return the command line arguments of the process."""
        return ["--one", str(self.contestant), str(self.rate), str(self.seed)]


def main() -> int:
    """Train side by side, collect, write; or do one training of it."""
    given = _parse()
    comparison = _comparison(given)
    if given.one:
        work = Work(int(given.one[0]), float(given.one[1]), int(given.one[2]))
        return _train_one(comparison, work, judge=given.judge)
    deadline = time.monotonic() + 60 * given.minutes
    first = [Work(index, rate, 0) for index in range(len(comparison.candidates)) for rate in RATES]
    if not _side_by_side(_missing(first, comparison, "model.safetensors"), given, deadline):
        return UNFINISHED
    best = [_best(comparison, contestant) for contestant in comparison.candidates]
    rest = [Work(index, rate, seed) for index, rate in enumerate(best) if rate for seed in range(SEEDS)]
    if not _side_by_side(_missing(rest, comparison, "figures.json"), given, deadline, "--judge"):
        return UNFINISHED
    comparison.run()
    path = given.result or RESULTS / f"{CHOICES[given.choice].file}_{'gpu' if given.device == 'cuda' else 'cpu'}.json"
    write_result(path, comparison, **_said(given))
    print(json.dumps({r["contestant"]: r["figures"] for r in comparison.records}, indent=1))
    return 0


NAMES = (
    "LSTM without attention",
    "the same with additive attention",
    "Transformer, softmax",
    "Transformer, Taylor of order 2",
    "Transformer, linear",
)
SAID = [(search, rate) for search in ("", f"beam_{BEAM}_") for rate in ("sequence_error_rate", "token_error_rate")]


def table(records: list[dict[str, Any]]) -> str:
    """Markdown: error rates of each contestant, greedy with their spread over seeds, and by a beam."""
    lines = [
        f"| | words wrong | best to worst seed | phones wrong | words wrong, beam {BEAM} | phones wrong, beam {BEAM} |",
        "|---|---|---|---|---|---|",
    ]
    for name, record in zip(NAMES, records, strict=True):
        words, phones, *beamed = (record["figures"][f"{search}{rate}"] for search, rate in SAID)
        spread = f"{100 * words['low']:.1f} to {100 * words['high']:.1f}"
        cells = [_percent(words), spread, _percent(phones), *map(_percent, beamed)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _percent(figure: dict[str, float]) -> str:
    return f"{100 * figure['mean']:.1f} %"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("choice", choices=CHOICES)
    parser.add_argument("--train-file", required=True)
    parser.add_argument("--test-file", required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder of the comparison; the same goes on")
    parser.add_argument("--result", type=Path, help="benchmarks/results/... without")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--graphs", action="store_true", help="CUDA graphs, for the models that can be recorded")
    parser.add_argument("--processes", type=int, default=10, help="trainings at the same time")
    parser.add_argument("--minutes", type=float, default=9.0, help="when to stop and wait for the next call")
    parser.add_argument("--steps", type=int, help="updates of each training")
    parser.add_argument("--one", nargs=3, metavar=("CONTESTANT", "RATE", "SEED"), help=argparse.SUPPRESS)
    parser.add_argument("--judge", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _comparison(given: argparse.Namespace) -> Comparison:
    choice = CHOICES[given.choice]
    train = {
        **choice.train,
        **({} if given.steps is None else {"steps": given.steps, "validate_every": max(given.steps // 4, 1)}),
    }
    changes = {"model": choice.model, "train": train}
    data = {"train_file": given.train_file, "test_file": given.test_file}
    contestants = make_candidates("pronounce", None, {**changes, "data": data}, choice.field)
    rules = ComparisonSettings(SEEDS, RATES, given.device, given.graphs, (BEAM,), search_fraction=1.0)
    return Comparison(tasks["pronounce"].load(data), contestants, given.out, rules, lambda _: None)


def _train_one(comparison: Comparison, work: Work, *, judge: bool) -> int:
    try:
        training = comparison.train(comparison.candidates[work.contestant], work.rate, work.seed)
    except Interrupted:
        return UNFINISHED
    if judge and training.failed is None:
        comparison.evaluate(training)
    return 0


def _best(comparison: Comparison, contestant: Candidate) -> float | None:
    """The rate that did best on held-out words; the trainings are there, so none is begun."""
    chosen = choose_best([comparison.train(contestant, rate, 0) for rate in RATES])
    return None if chosen is None else chosen.learning_rate


def _missing(work: list[Work], comparison: Comparison, file: str) -> list[Work]:
    """The trainings that do not have this file yet."""
    names = [one.name for one in comparison.candidates]
    folders = [comparison.folder / folder_name(names[one.contestant], one.rate, one.seed) for one in work]
    return [one for one, folder in zip(work, folders, strict=True) if not (folder / file).exists()]


def _side_by_side(work: list[Work], given: argparse.Namespace, deadline: float, *more: str) -> bool:
    """Run all of it; return whether it was done in time. A process that fails ends everything."""
    waiting, running = list(work), dict[Work, subprocess.Popen[bytes]]()
    command = [sys.executable, "-m", "benchmarks.compare_pronounce", *sys.argv[1:], *more]
    threads = str(max((os.cpu_count() or 1) // max(min(given.processes, len(work)), 1), 1))
    try:
        while (waiting or running) and time.monotonic() < deadline:
            while waiting and len(running) < given.processes:
                one = waiting.pop(0)
                print("training", *one.arguments()[1:], *more, flush=True)
                running[one] = subprocess.Popen(
                    [*command, *one.arguments()], env={**os.environ, "OMP_NUM_THREADS": threads}
                )
            time.sleep(0.2)
            for one in [one for one, process in running.items() if process.poll() is not None]:
                if running[one].returncode:
                    sys.exit(f"{one} ended with code {running[one].returncode}")
                del running[one]
        return not waiting and not running
    finally:
        for process in running.values():
            process.terminate()  # it saves a checkpoint and leaves
        for process in running.values():
            process.wait()


def _said(given: argparse.Namespace) -> dict[str, Any]:
    choice = CHOICES[given.choice]
    settings = {
        **{f"model.{n}": v for n, v in choice.model.items()},
        **{f"train.{n}": v for n, v in choice.train.items()},
    }
    if given.steps is not None:
        settings |= {"train.steps": given.steps, "train.validate_every": max(given.steps // 4, 1)}
    changes = " ".join(f"--set {name}={value}" for name, value in settings.items())
    rates, models = ",".join(map(str, RATES)), f'"{choice.field.models}"'
    graphs = " --graphs" if given.graphs else ""
    files = f"--train-file {Path(given.train_file).name} --test-file {Path(given.test_file).name}"
    return {
        "command": f"qkv compare pronounce --models {models} --seeds {SEEDS} --rates {rates} {changes} {files}",
        "made_by": f"python -m benchmarks.compare_pronounce {given.choice} --device {given.device}{graphs}",
        "searches": f"greedy; figures named beam_{BEAM}_... by a beam of {BEAM}",
        "speeds": f"{given.processes} trainings at a time shared the machine: speeds say nothing",
        "seeds": list(range(SEEDS)),
        "rates": list(RATES),
    }


if __name__ == "__main__":
    sys.exit(main())
