"""The result file of a comparison: what `qkv compare` found, with command, machine and versions."""

import json
from pathlib import Path
from typing import Any

from benchmarks.machine import about
from qkv.compare.comparison import Comparison

LEFT_OUT = ("run", "failed", "decode_tokens_per_second", "tokens_per_second")


def write_result(path: Path, comparison: Comparison, **notes: Any) -> None:
    """Records with the rates tried and the spread over seeds, and every training with its own figures."""
    record = {
        **about(),
        **notes,
        "task": comparison.task.kind,
        "split": comparison.split,
        "note": comparison.caveat,
        "records": comparison.records,
        "trainings": [
            {name: value for name, value in trial.to_record().items() if name not in LEFT_OUT}
            for trial in comparison.trials
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
