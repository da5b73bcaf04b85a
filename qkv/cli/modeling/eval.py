"""`qkv eval`: how good a trained run is."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.modeling import pronounce
from qkv.cli.shared.console import Json, print_json
from qkv.cli.shared.device import choose_device
from qkv.cli.tables import pronounce as pronounce_figures
from qkv.cli.tables.metrics import print_confusion, print_figures

if TYPE_CHECKING:
    from qkv.tasks import Task

With = Annotated[
    list[Path] | None,
    typer.Option("--with", metavar="RUN", help="Another run, whose probabilities are averaged in. Repeatable."),
]


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder, or pronounce: the model that comes with qkv.")],
    split: Annotated[str, typer.Option(help="train, valid or test.")] = "test",
    search: Annotated[
        str | None, typer.Option(help="greedy or beam; without, beam where there is a joint model, else greedy.")
    ] = None,
    beams: Annotated[int, typer.Option(help="Width of the beam.")] = 4,
    length_power: Annotated[float, typer.Option(help="Scores are divided by length to this power.")] = 0.0,
    test_file: Annotated[str | None, typer.Option(help="Another file to evaluate on.")] = None,
    stress: pronounce.Stress = True,
    with_: With = None,
    best: Annotated[int, typer.Option(help="pronounce: also how often the right one is among so many.")] = 1,
    joint: Annotated[
        str | None, typer.Option(help="pronounce: a joint model instead of the run's own, for a beam; none: without.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; cuda if it is there.")] = None,
    json: Json = False,
) -> None:
    """Measure a trained run on held-out data: error rates and similarities, or accuracy and what is taken for what.

    Of task text: perplexity a token and a word, and bits a byte. Of task masked: hidden tokens named and next sentences
    told, beside the best constant guess. Of task words: the loss of neighbors beside noise.

    A pronouncer's words wrong come with their 95 % interval, and are of the model alone, whatever dictionary there is.
    """
    from qkv import tasks
    from qkv.registry import unknown_name_error

    runs = [run, *(with_ or [])]
    if search not in (None, "greedy", "beam"):
        raise unknown_name_error("search", search, ("greedy", "beam"))
    if beams < 1:
        raise ValueError(f"--beams must be at least 1, got {beams}")
    if best < 1:
        raise ValueError(f"--best must be at least 1, got {best}")
    if best > 1 and search == "greedy":
        raise ValueError(f"--best {best} needs --search beam: greedy gives one answer")
    if joint not in (None, "none") and (search == "greedy" or beams == 1):
        raise ValueError(f"--joint {joint} needs a beam: one answer cannot be put in order")
    place = choose_device(device)
    if pronounce_figures.is_pronouncer(run):
        asked = pronounce_figures.Asked(search, beams, length_power, stress, best, joint)
        pronounce_figures.print_measured(runs, split, test_file, place, asked, json)
        return
    if not stress or best > 1 or joint is not None:
        raise ValueError(f"--no-stress, --best and --joint are for runs of task pronounce, and {run} is none")
    _, job, model = tasks.restore(*runs)
    job = _with_data(runs, job, test_file)
    model.to(place)
    wide = {"beams": beams if search == "beam" else 1, "length_power": length_power}
    searching = wide if isinstance(job, tasks.Seq2SeqTask) else {}
    figures: dict[str, Any] = job.evaluate(model, split, **searching)
    confusion = job.confusion(model, split) if isinstance(job, tasks.ClassificationTask) else None
    if json:
        more = {} if confusion is None else {"confusion_matrix": confusion}
        print_json({"run": str(run), "split": split, "search": search or "greedy", **figures, **more})
        return
    print_figures({f"{split} {search or 'greedy'}" if searching else split: figures})
    if isinstance(job, tasks.ClassificationTask) and confusion is not None:
        print_confusion(confusion, job.classes)


def _with_data(runs: list[Path], job: "Task", test_file: str | None) -> "Task":
    """A restored job has no data: those of its options, if they are still what was learned from, or of a file."""
    from qkv.runs.data_hash import require_judgeable

    if test_file is not None:
        return _with_file(job, test_file)
    require_judgeable(runs)
    return job.with_data() if hasattr(job, "with_data") else job


def _with_file(job: "Task", test_file: str) -> "Task":
    """The job with a file as its test part."""
    from qkv import tasks

    if isinstance(job, tasks.Seq2SeqTask):
        own = job.settings
        return job.with_test(pronounce_figures.read_good_pairs(test_file, source=own.source, target=own.target))
    if isinstance(job, tasks.TextTask | tasks.MaskedTask | tasks.WordsTask):
        _require_text(test_file)
        return job.with_test(test_file)
    if isinstance(job, tasks.ClassificationTask):
        return job.with_test(job.read_test(test_file))
    raise ValueError(f"--test-file {test_file} cannot be taken: a run of task {job.kind!r} reads no file")


def _require_text(path: str) -> None:
    """Refuse a file or folder without a single character."""
    from qkv.data.corpora.text import read_documents
    from qkv.storage import QkvError

    if not any(read_documents(path)):
        raise QkvError("--test-file must have a text, but it is empty", path)
