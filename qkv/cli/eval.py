"""`qkv eval`: how good a trained run is."""

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.figures import print_figures
from qkv.cli.output import Json, print_json


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    split: Annotated[str, typer.Option(help="train, valid or test.")] = "test",
    search: Annotated[str, typer.Option(help="greedy or beam.")] = "greedy",
    beams: Annotated[int, typer.Option(help="Width of the beam.")] = 4,
    length_power: Annotated[float, typer.Option(help="Scores are divided by length to this power.")] = 0.0,
    test_file: Annotated[str | None, typer.Option(help="Another TSV to evaluate on.")] = None,
    json: Json = False,
) -> None:
    """Measure a trained run on held-out data: error rates against the closest reference, and similarities."""
    from qkv import tasks
    from qkv.data import read_pairs
    from qkv.registry import unknown

    if search not in ("greedy", "beam"):
        raise unknown("search", search, ("greedy", "beam"))
    config, job, model = tasks.restore(run)
    options = {}
    if isinstance(job, tasks.StringJob):
        options = {"beams": 1 if search == "greedy" else beams, "length_power": length_power}
        if test_file is not None:
            found = read_pairs(test_file, source=job.settings.source, target=job.settings.target)
            job = job.with_test(found.pairs)
        else:
            job = tasks.jobs[config.task].load(config.data)
    figures = job.evaluate(model, split, **options)
    if json:
        print_json({"run": str(run), "split": split, "search": search, **figures})
    else:
        print_figures({f"{split} {search}": figures})
