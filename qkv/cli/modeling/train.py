"""`qkv train`: train a model, evaluate it, write a report."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.modeling.train_dry_run import print_dry_run
from qkv.cli.modeling.train_report import report_training
from qkv.cli.modeling.train_setup import OpenedRun, Request, open_run
from qkv.cli.shared.command import command_name
from qkv.cli.shared.completion import complete_kind
from qkv.cli.shared.console import Json, console
from qkv.cli.shared.device import choose_device
from qkv.cli.shared.mesh import TrainMesh, read_mesh, same_errors
from qkv.cli.shared.options import absolute_path, merge_options, parse_changes, require_no_epochs, training_length
from qkv.cli.shared.parameters import Device, Preset, Set, SourceFile, TargetFile, TaskName, TestFile, TrainFile
from qkv.cli.shared.plugin import Plugin, load_plugins
from qkv.cli.shared.signals import ExitOnSignal

if TYPE_CHECKING:
    from torch import nn

    from qkv.train import Compute

Resume = Annotated[
    bool, typer.Option("--resume", help="Continue the run in --run with its settings; start it if there is none.")
]
AttentionKind = Annotated[
    str | None,
    typer.Option(metavar="KIND", help="Attention kind, such as taylor: model.attention.", autocompletion=complete_kind),
]
Compile = Annotated[bool, typer.Option("--compile", help="Use torch.compile; the first steps may take minutes.")]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Print settings, parameters, data sizes and estimated time; write nothing."),
]
StallLimit = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="With several processes: end if one makes no progress for so long (default: 40; 0: never).",
    ),
]
DATA_FILES = ("train_file", "test_file", "source_file", "target_file")
StartFrom = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Start from the weights of this run or Hugging Face folder, with its model and vocabulary.",
    ),
]


def train(
    task: TaskName,
    preset: Preset = None,
    set_: Set = None,
    run: Annotated[Path | None, typer.Option(help="Run folder (default: runs/TASK-DATE).")] = None,
    resume: Resume = False,
    start_from: StartFrom = None,
    train_file: TrainFile = None,
    test_file: TestFile = None,
    source_file: SourceFile = None,
    target_file: TargetFile = None,
    lr: Annotated[float | None, typer.Option("--lr", help="Highest learning rate: train.learning_rate.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Examples per step: train.batch_size.")] = None,
    attention: AttentionKind = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps.")] = None,
    epochs: Annotated[float | None, typer.Option(hidden=True)] = None,
    minutes: Annotated[float | None, typer.Option(help="Training time, instead of --steps.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights, example order and dropout.")] = None,
    device: Device = None,
    workers: Annotated[int, typer.Option(help="Worker processes that prepare batches.")] = 0,
    compile_: Compile = False,
    graphs: Annotated[bool, typer.Option("--graphs", help="Use CUDA graphs: faster for small models on cuda.")] = False,
    mesh: TrainMesh = None,
    stall_limit: StallLimit = None,
    strict: Annotated[bool, typer.Option("--strict", help="Fail on a bad line instead of skipping it.")] = False,
    dry_run: DryRun = False,
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """Train a model. Ctrl-C saves a checkpoint; --resume continues from it, bit for bit on a CPU."""
    with ExitOnSignal("training had not started") as on_signal:
        load_plugins(plugin)
        changes = parse_changes(set_)
        require_no_epochs(epochs)
        merge_options(changes, "train", **training_length(steps, minutes), seed=seed)
        merge_options(changes, "train", learning_rate=lr, batch_size=batch_size)
        merge_options(changes, "model", attention=attention)
        files = dict(zip(DATA_FILES, (train_file, test_file, source_file, target_file), strict=True))
        merge_options(changes, "data", **{k: absolute_path(v) for k, v in files.items()}, strict=strict or None)
        # what this machine cannot do raises before a folder exists
        with same_errors():
            arrangement = read_mesh(mesh)
            shape = None if dry_run else arrangement
            compute = _compute(device, stall_limit, workers=workers, compile=compile_, graphs=graphs, mesh=shape)
        request = Request(task, preset, changes, run, resume, start_from, compute.device, arrangement)
        if dry_run:
            print_dry_run(request, compute, json)
            return
        with open_run(request) as opened:
            _train_and_report(opened, compute, on_signal, json)


def _compute(device: str | None, stall_limit: float | None, **options: Any) -> "Compute":
    from qkv.train import Compute

    if stall_limit is not None:
        options["stall_limit"] = stall_limit
    return Compute(device=choose_device(device), **options)


def _train_and_report(opened: OpenedRun, compute: "Compute", on_signal: ExitOnSignal, as_json: bool) -> None:
    from qkv.train.distributed import get_rank

    model = _train(opened, compute, on_signal)
    if get_rank() == 0:
        report_training(opened.run, opened.config, opened.task, model, as_json)


def _train(opened: OpenedRun, compute: "Compute", on_signal: ExitOnSignal) -> "nn.Module":
    """Train to the end and return the best model; an interrupt saves and exits."""
    from qkv import runs
    from qkv.cli.shared.progress import training_progress
    from qkv.train import Interrupted, Loop
    from qkv.train.distributed import get_rank, get_world_size, lost_process_errors
    from qkv.train.parallel.mesh import choose_mesh
    from qkv.train.parallel.support import require_mesh_support

    config, task, run, resume, weights = opened
    model = runs.build(config, task)
    if weights is not None:
        model.load_state_dict(weights)
    objective = runs.make_objective(config, task, model)
    with same_errors():
        require_mesh_support(objective, choose_mesh(compute.mesh, get_world_size()))
    with lost_process_errors(), training_progress(task.unit) as report:
        loop = Loop(objective, config.train, run, compute, report)
        if resume:
            loop.resume()
        again = f"{command_name()} train {config.task} --run {run.folder} --resume"
        on_signal.sentence = f"training is not finished; continue it with {again}"
        try:
            loop.train()
        except Interrupted as stopped:
            if get_rank() == 0:
                console(stderr=True).print(
                    f"{stopped}; all is saved: {again}",
                    markup=False,
                    soft_wrap=True,
                )
            raise SystemExit(128 + stopped.signal) from None
    on_signal.sentence = (
        f"the model is trained and saved in {run.folder}, its evaluation was not finished; repeat it with "
        f"{command_name()} eval {run.folder} --split {task.default_split}"
    )
    if loop.final is None:  # rank 0 has it
        return model
    if loop.group.shares_parameters:  # this process has a share of the model
        model = runs.build(config, task).to(loop.device)
    model.load_state_dict(loop.final)
    return model.eval()
