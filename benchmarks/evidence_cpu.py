"""What linear attention loses, on a CPU: `python -m benchmarks.evidence_cpu [--out FOLDER] [--shared]`.

Parity by kinds with and without negative eigenvalues: three learning rates a kind over a quarter of the length, then
three seeds. Cut off, the same command continues. Writes benchmarks/results/evidence_cpu.json and the picture of
docs/evidence.md.
"""

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.comparison import LEFT_OUT
from benchmarks.machine import about
from qkv.compare.candidates import Changes, Grid, make_candidates
from qkv.compare.comparison import Comparison, ComparisonSettings, ComparisonStatus
from qkv.compare.pictures import draw_pictures
from qkv.tasks import tasks

RESULTS = Path(__file__).parent / "results" / "evidence_cpu.json"
PICTURE = Path(__file__).parent.parent / "docs" / "images" / "evidence_parity.svg"
SEEDS = 3
RATES = (0.003, 0.01, 0.03)


class Question(NamedTuple):
    """A comparison: its task, kinds and settings that differ from the preset."""

    task: str
    attention: str
    changes: Changes

    @property
    def command(self) -> str:
        """The same as a command line."""
        named = [(f"{group}.{name}", value) for group, values in self.changes.items() for name, value in values.items()]
        settings = " ".join(f"--set {name}={value}" for name, value in named)
        return f'qkv compare {self.task} --attention "{self.attention}" --rates {",".join(map(str, RATES))} {settings}'


QUESTIONS = (
    Question(
        "parity",
        "delta+write(largest=2),delta+write,linear,softmax",
        {"model": {"dim": 32}, "train": {"steps": 600}},
    ),
)


def main() -> None:
    """Compare, write, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/evidence"))
    parser.add_argument("--result", type=Path, default=RESULTS)
    parser.add_argument("--picture", type=Path, default=PICTURE)
    parser.add_argument("--shared", action="store_true", help="the machine had other work: say that times mean nothing")
    given = parser.parse_args()
    found = {question.task: _compare(question, given.out / question.task) for question in QUESTIONS}
    said = {"times": "the machine had other work: times and speeds say nothing"} if given.shared else {}
    result = {**about(), "command": "python -m benchmarks.evidence_cpu", **said, "comparisons": found}
    given.result.write_text(json.dumps(result, indent=1) + "\n")
    given.picture.write_text(picture(result))
    for task in found:
        print(table(result, task))


def _compare(question: Question, folder: Path) -> dict[str, Any]:
    candidates = make_candidates(question.task, None, question.changes, Grid(question.attention))
    task = tasks[question.task].load({})
    comparison = Comparison(task, candidates, folder, ComparisonSettings(SEEDS, RATES), _say)
    records = comparison.run()
    trainings = [trial.to_record() for trial in comparison.trials]
    return {
        "command": question.command,
        "data": task.options,
        "rules": comparison.rules(),
        "records": records,
        "trainings": [{name: value for name, value in one.items() if name not in LEFT_OUT} for one in trainings],
    }


def table(result: dict[str, Any], task: str) -> str:
    """Return Markdown: the accuracy at each size, worst to best seed, parameters and bytes of state."""
    records = result["comparisons"][task]["records"]
    sizes = [name for name in records[0]["figures"] if name.startswith("length_")]
    titles = [" ".join(name.split("_")[:2]) for name in sizes]
    lines = [f"| kind | {' | '.join(titles)} | rate | parameters | bytes of state |", "|---" * (len(sizes) + 4) + "|"]
    for record in records:
        spreads = [record["figures"][name] for name in sizes]
        cells = [f"{100 * x['mean']:.1f} % ({100 * x['low']:.1f} to {100 * x['high']:.1f})" for x in spreads]
        costs = [f"{record['rate']:g}", f"{record['parameters']:,}", f"{record['state_bytes']:,}"]
        lines.append(f"| `{record['contestant']}` | {' | '.join([*cells, *costs])} |")
    chance = f"{100 * records[0]['chance']:.1f} %"
    lines.append(f"| chance | {' | '.join([chance] * len(sizes))} | | | |")
    return "\n".join(lines)


def picture(result: dict[str, Any]) -> str:
    """Return the accuracy of parity over the length, by kind."""
    return draw_pictures(result["comparisons"]["parity"]["records"], "parity")["sizes.svg"]


def _say(status: ComparisonStatus) -> None:
    if status.done == int(status.done):
        print(f"{int(status.done)} of {status.total} done: {status.description}", flush=True)


if __name__ == "__main__":
    main()
