"""`qkv eval`: how good a trained run is."""

from pathlib import Path
from typing import Annotated, Any

import typer

from qkv.cli import pronounce, pronounce_figures
from qkv.cli.figures import print_confusion, print_figures
from qkv.cli.output import Json, print_json


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder, or pronounce: the model that comes with qkv.")],
    split: Annotated[str, typer.Option(help="train, valid or test.")] = "test",
    search: Annotated[str, typer.Option(help="greedy or beam.")] = "greedy",
    beams: Annotated[int, typer.Option(help="Width of the beam.")] = 4,
    length_power: Annotated[float, typer.Option(help="Scores are divided by length to this power.")] = 0.0,
    test_file: Annotated[str | None, typer.Option(help="Another file to evaluate on.")] = None,
    stress: pronounce.Stress = True,
    best: Annotated[int, typer.Option(help="pronounce: also how often the right one is among so many.")] = 1,
    json: Json = False,
) -> None:
    """Measure a trained run on held-out data: error rates and similarities, or accuracy and what is taken for what.

    Of task masked: hidden tokens named and next sentences told, beside the best constant guess.

    A pronouncer's words wrong come with their 95 % interval, and are of the model alone, whatever dictionary there is.
    """
    from qkv import tasks
    from qkv.data import read_pairs
    from qkv.registry import unknown

    if search not in ("greedy", "beam"):
        raise unknown("search", search, ("greedy", "beam"))
    if pronounce_figures.is_pronouncer(run):
        wide = {"beams": 1 if search == "greedy" else beams, "length_power": length_power}
        pronounce_figures.print_measured(run, split, test_file, {**wide, "stress": stress, "best": best}, json)
        return
    if not stress or best > 1:
        raise ValueError(f"--no-stress and --best are for runs of task pronounce, and {run} is none")
    config, job, model = tasks.restore(run)
    options = {}
    if isinstance(job, tasks.StringJob):
        options = {"beams": 1 if search == "greedy" else beams, "length_power": length_power}
        if test_file is not None:
            found = read_pairs(test_file, source=job.settings.source, target=job.settings.target)
            job = job.with_test(found.pairs)
        else:
            job = tasks.jobs[config.task].load(config.data)
    if isinstance(job, tasks.TextJob | tasks.MaskedJob):
        job = job.with_data() if test_file is None else job.with_test(test_file)
    if isinstance(job, tasks.ClassJob):
        job = job.with_data() if test_file is None else job.with_test(job.read_test(test_file))
    figures: dict[str, Any] = job.evaluate(model, split, **options)
    confusion = job.confusion(model, split) if isinstance(job, tasks.ClassJob) else None
    if json:
        more = {} if confusion is None else {"confusion_matrix": confusion}
        print_json({"run": str(run), "split": split, "search": search, **figures, **more})
        return
    print_figures({f"{split} {search}" if options else split: figures})
    if isinstance(job, tasks.ClassJob) and confusion is not None:
        print_confusion(confusion, job.classes)
