"""What linear attention forgets, on a CPU: `python -m benchmarks.compare_recall [--out FOLDER]`.

Preset `small` of the task recall, three learning rates a kind, three seeds at the best of them. Twenty trainings;
cut off, the same command continues. Writes benchmarks/results/recall_cpu.json, from which the README's table is made.
"""

import argparse
from pathlib import Path
from typing import Any

from benchmarks.comparison import write_result
from qkv.compare.candidates import Grid, make_candidates
from qkv.compare.comparison import Comparison, ComparisonSettings, ComparisonStatus
from qkv.tasks import tasks

RESULTS = Path(__file__).parent / "results" / "recall_cpu.json"
ATTENTION = "softmax:key_dim=16,taylor:key_dim=16,linear,taylor:key_dim=8"
SEEDS = 3


def main() -> None:
    """Compare, write, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/compare-recall"))
    parser.add_argument("--result", type=Path, default=RESULTS)
    parser.add_argument("--steps", type=int, help="updates of each training; the preset's without")
    parser.add_argument(
        "--shared", action="store_true", help="the machine had other work: say that speeds mean nothing"
    )
    given = parser.parse_args()
    changes = {} if given.steps is None else {"train": {"steps": given.steps}}
    contestants = make_candidates("recall", None, changes, Grid(ATTENTION))
    comparison = Comparison(
        tasks["recall"].load({}), contestants, given.out, ComparisonSettings(SEEDS, search_fraction=1.0), _say
    )
    comparison.run()
    command = f'qkv compare recall --attention "{ATTENTION}" --seeds {SEEDS} --search 1'
    said = {"speeds": "the machine had other work: speeds say nothing"} if given.shared else {}
    write_result(given.result, comparison, command=command, data=comparison.task.options, **said)
    print(table(comparison.records))


def table(records: list[dict[str, Any]]) -> str:
    """Markdown: recall with its spread, and the size of the state."""
    lines = ["| kind | right answers | worst to best seed | bytes of state |", "|---|---|---|---|"]
    for record in records:
        spread = {name: f"{100 * value:.1f} %" for name, value in record["figures"]["accuracy"].items()}
        cells = [
            f"`{record['contestant']}`",
            spread["mean"],
            f"{spread['low']} to {spread['high']}",
            f"{record['state_bytes']:,}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines.append(f"| chance | {100 * records[0]['chance']:.1f} % | | |")
    return "\n".join(lines)


def _say(standing: ComparisonStatus) -> None:
    if standing.done == int(standing.done):
        print(f"{int(standing.done)} of {standing.total} done: {standing.description}", flush=True)


if __name__ == "__main__":
    main()
