"""`qkv train`: train a model, evaluate it, write a report."""

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.modeling.train_resume import require_same_run
from qkv.cli.shared.command import command_name
from qkv.cli.shared.console import Json, console, print_json
from qkv.cli.shared.device import choose_device
from qkv.cli.shared.options import absolute_path, merge_options, parse_changes, training_length
from qkv.cli.shared.plugin import Plugin, load_plugins
from qkv.cli.tables.metrics import print_metrics

if TYPE_CHECKING:
    from torch import nn

    from qkv.runs import Config
    from qkv.tasks import Sample, Task
    from qkv.train import Compute, Run


def train(
    task: Annotated[str, typer.Argument(help="Task to train; `qkv list tasks` prints all.")],
    preset: Annotated[str | None, typer.Option(help="Preset (default: the task's first).")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Change a setting, e.g. model.dim=64 or data.target=characters.", metavar="GROUP.NAME=VALUE"
        ),
    ] = None,
    run: Annotated[Path | None, typer.Option(help="Run folder (default: runs/TASK-DATE).")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --run with its settings.")] = False,
    train_file: Annotated[
        str | None,
        typer.Option(
            help="Training data: TSV of pairs, CSV of points, .npz or IDX images, .txt file or folder of .txt files."
        ),
    ] = None,
    test_file: Annotated[str | None, typer.Option(help="Test data in the same format.")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Training time, instead of --steps.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights, example order and dropout.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or mps (default: cuda if available).")] = None,
    workers: Annotated[int, typer.Option(help="Worker processes that prepare batches.")] = 0,
    compile_: Annotated[
        bool, typer.Option("--compile", help="Use torch.compile; the first steps may take minutes.")
    ] = False,
    graphs: Annotated[bool, typer.Option("--graphs", help="Use CUDA graphs: faster for small models on cuda.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Fail on a bad line instead of skipping it.")] = False,
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """Train a model. Ctrl-C saves a checkpoint; --resume continues from it, bit for bit on a CPU."""
    from qkv.train import Compute
    from qkv.train.distributed import get_rank

    load_plugins(plugin)
    changes = parse_changes(set_)
    merge_options(changes, "train", **training_length(steps, minutes), seed=seed)
    files = {"train_file": absolute_path(train_file), "test_file": absolute_path(test_file)}
    merge_options(changes, "data", **files, strict=strict or None)
    # what this machine cannot do raises before a folder exists
    compute = Compute(device=choose_device(device), workers=workers, compile=compile_, graphs=graphs)
    if resume:
        config, loaded, opened = _resume_run(task, preset, changes, run)
    else:
        config, loaded, opened = _create_run(task, preset, changes, run)
    model = _train(config, loaded, opened, resume, compute)
    if get_rank() == 0:
        _finish(opened, config, loaded, model, json)


def _resume_run(
    name: str, preset: str | None, changes: dict[str, dict[str, Any]], folder: Path | None
) -> tuple["Config", "Task", "Run"]:
    from qkv import runs, tasks
    from qkv.train import Run

    if folder is None:
        raise ValueError("--resume needs --run: the run folder to continue")
    config = runs.read_config(Run(folder))
    require_same_run(config, folder, name, preset, changes)
    runs.require_unchanged(folder, "start another training with another --run")
    return config, tasks.tasks[config.task].load(config.data), Run(folder)


def _create_run(
    name: str, preset: str | None, changes: dict[str, dict[str, Any]], folder: Path | None
) -> tuple["Config", "Task", "Run"]:
    from qkv import runs, tasks
    from qkv.train import Run, create_run
    from qkv.train.distributed import get_rank
    from qkv.train.ema import require_no_split_batch_norm

    config = runs.configure(name, runs.preset(name, preset), changes)
    task = tasks.tasks[name].load(config.data)
    for warning in task.warnings:
        console(stderr=True).print(warning, markup=False)
    config = replace(config, data=task.options)
    model = runs.build(config, task)
    runs.validate(config, task, model)  # an impossible model raises before a folder exists
    require_no_split_batch_norm(model, config.train)
    folder = folder or Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    if get_rank() == 0:
        runs.save_config(create_run(folder), config, task)
    return config, task, Run(folder)


def _train(config: "Config", task: "Task", run: "Run", resume: bool, compute: "Compute") -> "nn.Module":
    """Train to the end and return the best model; an interrupt saves and exits."""
    from qkv import runs
    from qkv.cli.shared.progress import training_progress
    from qkv.train import Interrupted, Loop

    model = runs.build(config, task)
    with run.lock(), training_progress() as report:
        loop = Loop(runs.make_objective(config, task, model), config.train, run, compute, report)
        if resume:
            loop.resume()
        try:
            loop.train()
        except Interrupted as stopped:
            console(stderr=True).print(
                f"{stopped}; all is saved: {command_name()} train {config.task} --run {run.folder} --resume"
            )
            raise SystemExit(128 + stopped.signal) from None
    model.load_state_dict(loop.best)
    return model.eval()


def _finish(run: "Run", config: "Config", task: "Task", model: "nn.Module", as_json: bool) -> None:
    """Evaluate the model, write the report, print both."""
    split = task.default_split
    console(stderr=True).print(f"trained; evaluating on the {split} split")
    metrics = {
        f"{split} {name}".strip(): task.evaluate(model, split, **search) for name, search in task.searches.items()
    }
    has_report = _write_report(run, config, task, model, metrics)
    if as_json:
        parameters = sum(p.numel() for p in model.parameters())
        print_json({"run": str(run.folder), "parameters": parameters, "figures": metrics})
        return
    print_metrics(metrics)
    _print_samples(task.samples(model))
    if has_report:
        console().print(f"report:     {run.folder / 'report.html'}", soft_wrap=True)
    if task.reads_tokens():
        console().print(f"inspect it: {command_name()} serve {run.folder}", soft_wrap=True)
    console().print(f"run folder: {run.folder}", soft_wrap=True)


def _write_report(
    run: "Run", config: "Config", task: "Task", model: "nn.Module", metrics: dict[str, dict[str, float]]
) -> bool:
    """Write report.html; return whether the task has a report."""
    from qkv.draw import report_page
    from qkv.storage import write_atomic
    from qkv.tasks import RunSummary

    summary = RunSummary(
        config.task, config.family, config.model, config.train, config.data, run.read_metrics(), metrics
    )
    page = task.report(model, summary)
    if page is None:
        return False
    write_atomic(run.folder / "report.html", report_page(page).encode())
    return True


def _print_samples(samples: "list[Sample]") -> None:
    from rich.markup import escape
    from rich.table import Table

    if not samples:
        return
    table = Table("unseen", "answers and their probabilities", "right", "written while attending to")
    for sample in samples:
        answers = "\n".join(f"{text}  {probability:.2f}" for text, probability in sample.answers)
        cells = (sample.source, answers, "\n".join(sample.right), sample.attended)
        table.add_row(*map(escape, cells), end_section=True)
    console().print(table)
