"""`qkv train`: from data to a trained model, its figures and a report."""

import os
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.modeling.train_resume import require_same_run
from qkv.cli.shared.console import Json, console, print_json
from qkv.cli.shared.device import choose_device
from qkv.cli.shared.options import from_anywhere, how_long, merge, parse_changes
from qkv.cli.shared.plugin import Plugin, load
from qkv.cli.tables.metrics import print_figures

if TYPE_CHECKING:
    from torch import nn

    from qkv.runs import Config
    from qkv.tasks import Task, Seq2SeqTask
    from qkv.train import Machine, Run


def train(
    task: Annotated[str, typer.Argument(help="What to learn: qkv list tasks.")],
    preset: Annotated[str | None, typer.Option(help="A named way to do it; the first one without.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Such as model.dim=64 or data.target=characters.", metavar="GROUP.NAME=VALUE"),
    ] = None,
    run: Annotated[Path | None, typer.Option(help="Folder of the run; runs/TASK-DATE without.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --run, as it was set.")] = False,
    train_file: Annotated[
        str | None,
        typer.Option(
            help="What to train on: TSV of pairs, CSV of points, .npz or IDX pictures, .txt or a folder of them."
        ),
    ] = None,
    test_file: Annotated[str | None, typer.Option(help="The same to evaluate on.")] = None,
    steps: Annotated[int | None, typer.Option(help="Updates.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Instead of steps.")] = None,
    seed: Annotated[int | None, typer.Option(help="Decides weights, order and dropout.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; cuda if it is there.")] = None,
    workers: Annotated[int, typer.Option(help="Processes that prepare batches.")] = 0,
    compile_: Annotated[
        bool, typer.Option("--compile", help="torch.compile the model; its first steps may take minutes.")
    ] = False,
    graphs: Annotated[
        bool, typer.Option("--graphs", help="Replay recorded kernels: for small models on cuda.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="A bad line is an error.")] = False,
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """Train a model; Ctrl-C saves, --resume goes on as if never stopped: on a CPU to the last bit."""
    load(plugin)
    changes = parse_changes(set_)
    merge(changes, "train", **how_long(steps, minutes), seed=seed)
    merge(
        changes, "data", train_file=from_anywhere(train_file), test_file=from_anywhere(test_file), strict=strict or None
    )
    machine = _machine(device=choose_device(device), workers=workers, compile=compile_, graphs=graphs)
    config, job, folder = _prepare(task, preset, changes, run, resume)
    figures = _train(config, job, folder, resume, machine)
    if int(os.environ.get("RANK", "0")) == 0:
        _finish(folder, config, job, figures, json)


def _machine(**given: Any) -> "Machine":
    """Where to compute; what this machine cannot do is refused before there is a folder."""
    from qkv.train import Machine

    return Machine(**given)


def _prepare(
    task: str, preset: str | None, changes: dict[str, dict[str, Any]], folder: Path | None, resume: bool
) -> tuple["Config", "Task", "Run"]:
    from qkv import tasks
    from qkv.runs.data_hash import require_unchanged
    from qkv.train import Run, create
    from qkv.train.ema import require_whole_batches

    if resume:
        if folder is None:
            raise ValueError("--resume needs --run: which run to go on with")
        config = tasks.read_config(Run(folder))
        require_same_run(config, folder, task, preset, changes)
        require_unchanged(folder, "train anew with another --run")
        return config, tasks.tasks[config.task].load(config.data), Run(folder)
    config = tasks.configure(task, tasks.preset(task, preset), changes)
    job = tasks.tasks[task].load(config.data)
    for line in getattr(job, "bad_lines", ())[:5]:
        console(stderr=True).print(f"left out: {line}", markup=False)
    if len(getattr(job, "bad_lines", ())) > 5:
        console(stderr=True).print(f"... {len(job.bad_lines)} bad lines in all")  # type: ignore[attr-defined]
    _tell_of_whole_targets(job)
    folder = folder or Path("runs") / f"{task}-{datetime.now():%Y%m%d-%H%M%S}"
    config = replace(config, data=job.options)
    model = tasks.build(config, job)
    job.validate_model(model)  # an impossible model says so before there is a folder
    require_whole_batches(model, config.train)
    if isinstance(job, tasks.WordsTask):
        job.objective(model, config.train)  # and so do settings that mean nothing to it
    if int(os.environ.get("RANK", "0")) == 0:
        found = create(folder)
        tasks.write(found, config, job)
    return config, job, Run(folder)


def _tell_of_whole_targets(job: "Task") -> None:
    """Targets without a space, most of them different, are texts that somebody forgot to have cut."""
    from qkv.tasks import Seq2SeqTask

    if not isinstance(job, Seq2SeqTask) or job.settings.target != "words":
        return
    targets = [target for pair in job.strings.parts["train"] for target in pair.targets]
    if all(len(target) == 1 for target in targets) and len(set(targets)) > len(targets) / 2:
        console(stderr=True).print(
            "no target has a space, so each is one token; --set data.target=characters cuts them into characters"
        )


def _train(config: "Config", job: "Task", folder: "Run", resume: bool, machine: "Machine") -> "nn.Module":
    from qkv import tasks
    from qkv.cli.shared.progress import training_progress
    from qkv.train import Interrupted, Loop

    model = tasks.build(config, job)
    with folder.alone(), training_progress() as report:
        loop = Loop(job.objective(model, config.train), config.train, folder, machine, report)
        if resume:
            loop.resume()
        try:
            loop.train()
        except Interrupted as stopped:
            console(stderr=True).print(
                f"{stopped}; all is saved: qkv train {config.task} --run {folder.folder} --resume"
            )
            raise SystemExit(128 + stopped.signal) from None
    model.load_state_dict(loop.best)
    return model.eval()


def _finish(folder: "Run", config: "Config", job: "Task", model: "nn.Module", as_json: bool) -> None:
    from qkv.tasks import Seq2SeqTask

    strings = isinstance(job, Seq2SeqTask)
    split = "test" if not strings or job.strings.parts.get("test") else "valid"  # type: ignore[attr-defined]
    searches = {"greedy": {"beams": 1}, "beam 4": {"beams": 4}} if strings else {"": {}}
    console(stderr=True).print(f"trained; now measured on the {split} part")
    rates = {f"{split} {name}".strip(): job.evaluate(model, split, **search) for name, search in searches.items()}
    if isinstance(job, Seq2SeqTask):
        _write_report(folder, config, job, model, rates)
    if as_json:
        print_json(
            {"run": str(folder.folder), "parameters": sum(p.numel() for p in model.parameters()), "figures": rates}
        )
        return
    print_figures(rates)
    if isinstance(job, Seq2SeqTask):
        _print_examples(job, model)
        console().print(f"report:     {folder.folder / 'report.html'}", soft_wrap=True)
        console().print(f"look at it: qkv serve {folder.folder}", soft_wrap=True)
    console().print(f"run folder: {folder.folder}", soft_wrap=True)


def _write_report(
    folder: "Run", config: "Config", job: Any, model: "nn.Module", rates: dict[str, dict[str, float]]
) -> None:
    from qkv.draw import report
    from qkv.storage import write_atomic
    from qkv.tasks.report import make_report

    page = make_report(folder, config, job, model, rates)
    write_atomic(folder.folder / "report.html", report(page).encode())


def _print_examples(job: "Seq2SeqTask", model: "nn.Module") -> None:
    """Unseen sources with their best answers, and which source token was looked at most for each token written."""
    from rich.markup import escape
    from rich.table import Table

    from qkv.tasks.report import examples, looked, unseen

    pairs = unseen(job)
    table = Table("unseen", "answers and their probabilities", "right", "written while looking at")
    for pair, example in zip(pairs, examples(job, model, pairs), strict=True):
        answers = "\n".join(f"{a.text}  {a.probability:.2f}" for a in example.answers)
        seen = looked(job, model, pair)
        places = [] if seen is None else [row.index(max(row)) for row in seen[1].weights]
        written = () if seen is None else seen[0]
        where = " ".join(f"{token}:{pair.source[place]}" for token, place in zip(written, places, strict=True))
        cells = (example.source, answers, "\n".join(example.right), where)
        table.add_row(*map(escape, cells), end_section=True)
    console().print(table)
