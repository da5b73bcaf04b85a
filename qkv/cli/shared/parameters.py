"""Options and arguments that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.shared.completion import complete_preset, complete_run, complete_task

Device = Annotated[
    str | None,
    typer.Option("--device", metavar="DEVICE", help="cpu, cuda or mps (default: cuda if available, else cpu)."),
]
Preset = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Preset; `qkv show TASK:PRESET` prints its settings (default: the task's first).",
        autocompletion=complete_preset,
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="GROUP.NAME=VALUE",
        help="Change a setting, such as model.dim=64; `qkv show TASK` prints all. Repeatable.",
    ),
]
TrainFile = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Training data: TSV of pairs, CSV of points, .npz or IDX images, text file or folder, token shards.",
    ),
]
SourceFile = Annotated[
    str | None, typer.Option(metavar="FILE", help="Sentences to translate, one per line (task translate).")
]
TargetFile = Annotated[
    str | None, typer.Option(metavar="FILE", help="Their translations, line by line (task translate).")
]
TestFile = Annotated[str | None, typer.Option(metavar="FILE", help="Test data in the same format.")]
With = Annotated[
    list[Path] | None,
    typer.Option(
        "--with",
        metavar="RUN",
        help="Another run, whose probabilities are averaged in. Repeatable.",
        autocompletion=complete_run,
    ),
]
TaskName = Annotated[
    str, typer.Argument(help="Task to train; `qkv list tasks` prints all.", autocompletion=complete_task)
]
