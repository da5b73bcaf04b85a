"""Set up a training for `qkv train`: a new run folder, or the one to resume."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from qkv.cli.modeling.train_resume import require_same_run, require_same_start
from qkv.cli.shared.console import console
from qkv.cli.shared.mesh import same_errors

if TYPE_CHECKING:
    from torch import nn

    from qkv.runs import Config, Start
    from qkv.tasks import Task
    from qkv.train import Run
    from qkv.train.ema import Weights
    from qkv.train.parallel.mesh import Mesh


@dataclass(frozen=True)
class Request:
    """A training as the options describe it."""

    task: str
    preset: str | None
    changes: dict[str, dict[str, Any]]
    """Settings by group, as `--set` and the options give them."""
    folder: Path | None
    resume: bool
    """Whether to continue the run in the folder, if there is one."""
    start_from: Path | None = None
    """Run folder or Hugging Face folder with the initial weights (fine-tuning)."""
    device: str = "cpu"
    mesh: "Mesh | None" = None
    """Arrangement of the processes; None: each has the whole model."""


class OpenedRun(NamedTuple):
    """A locked run folder with its configuration and data."""

    config: "Config"
    task: "Task"
    run: "Run"
    resume: bool
    weights: "Weights | None" = None
    """Initial weights; None: random ones, or those of the checkpoint that is resumed."""


@contextmanager
def open_run(request: Request) -> Iterator[OpenedRun]:
    """Create or reopen the run folder and lock it; the lock is taken before anything is written."""
    from qkv import runs
    from qkv.train import Run, create_run
    from qkv.train.distributed import get_rank, is_restarted, may_restart

    if request.folder is None and request.resume:
        raise ValueError("--resume needs --run: the run folder to continue")
    if request.folder is None and may_restart():
        raise ValueError("torchrun --max-restarts needs --run, so that restarted processes use the same run folder")
    folder = request.folder or Path("runs") / f"{request.task}-{datetime.now():%Y%m%d-%H%M%S}"
    run, resume = Run(folder), request.resume or is_restarted()
    if resume and (folder / "config.json").exists():
        with run.lock():
            yield _reopen(request, run)
        return
    if resume and get_rank() == 0:
        console(stderr=True).print(f"there is no run in {folder} yet: starting one", markup=False, soft_wrap=True)
    config, task, model = prepare(request)
    start = model if config.start else None
    with run.lock():
        if get_rank() == 0:
            runs.save_config(create_run(folder), config, task, start)
        yield OpenedRun(config, task, run, resume, None if start is None else start.state_dict())


def _reopen(request: Request, run: "Run") -> OpenedRun:
    from qkv import runs, tasks
    from qkv.records import from_mapping
    from qkv.runs import start
    from qkv.train import Settings
    from qkv.train.distributed import get_rank

    config = runs.read_config(run, resume=True)
    require_same_run(config, run.folder, request.task, request.preset, request.changes)
    require_same_start(config, run.folder, request.start_from)
    runs.require_unchanged(run.folder, "start another training with another --run")
    steps = request.changes.get("train", {}).get("steps")
    if steps not in (None, config.train.steps):
        train = from_mapping(Settings, {**asdict(config.train), "steps": steps}, "training setting")
        config = replace(config, train=train)
        if get_rank() == 0:
            run.reopen(steps)
    if config.start is None:
        task = tasks.tasks[config.task].load(config.data)
        runs.require_same_vocabulary(run, task.vocabulary())
    else:
        task = start.load_task(config, start.read_vocabulary(run))
    return OpenedRun(config, task, run, True, start.read_copy(run, config))


def prepare(request: Request) -> tuple["Config", "Task", "nn.Module"]:
    """Return configuration, data and model of a new run; what cannot be trained raises before a folder exists."""
    from qkv import runs
    from qkv.train.backward import require_supported
    from qkv.train.ema import require_no_split_batch_norm
    from qkv.train.parallel.support import require_mesh_support

    start = None if request.start_from is None else runs.read_start(request.start_from)
    config, task = _load(request, start)
    for warning in task.warnings:
        console(stderr=True).print(warning, markup=False)
    config = replace(config, data=task.options, preset=request.preset)
    model = runs.build(config, task)
    if start is not None:
        runs.copy_matching(start, model)
    runs.validate(config, task, model)
    require_no_split_batch_norm(model, config.train)
    require_supported(config.train, model, request.device)
    if request.mesh is not None:
        with same_errors():
            require_mesh_support(runs.make_objective(config, task, model), request.mesh)
    return config, task, model


def _load(request: Request, start: "Start | None") -> tuple["Config", "Task"]:
    from qkv import runs, tasks
    from qkv.runs.start import load_task

    chosen = runs.preset(request.task, request.preset, request.changes.get("data"))
    if start is not None:
        config = runs.configure_from(start, request.task, chosen, request.changes)
        return config, load_task(config, start.vocabulary)
    config = runs.configure(request.task, chosen, request.changes)
    return config, tasks.tasks[request.task].load(config.data)
