"""Set up a training for `qkv train`: a new run folder, or the one to resume."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from qkv.cli.modeling.train_resume import require_same_run
from qkv.cli.shared.console import console

if TYPE_CHECKING:
    from qkv.runs import Config
    from qkv.tasks import Task
    from qkv.train import Run


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


class OpenedRun(NamedTuple):
    """A locked run folder with its configuration and data."""

    config: "Config"
    task: "Task"
    run: "Run"
    resume: bool


@contextmanager
def open_run(request: Request) -> Iterator[OpenedRun]:
    """Create or reopen the run folder and lock it; the lock is taken before anything is written."""
    from qkv.train import Run
    from qkv.train.distributed import get_rank, is_restarted, may_restart

    if request.folder is None and request.resume:
        raise ValueError("--resume needs --run: the run folder to continue")
    if request.folder is None and may_restart():
        raise ValueError("torchrun --max-restarts needs --run: a restarted process must find its run folder")
    folder = request.folder or Path("runs") / f"{request.task}-{datetime.now():%Y%m%d-%H%M%S}"
    run, resume = Run(folder), request.resume or is_restarted()
    if resume and (folder / "config.json").exists():
        with run.lock():
            yield OpenedRun(*_reopen(request, run), run, resume)
        return
    if resume and get_rank() == 0:
        console(stderr=True).print(f"there is no run in {folder} yet: starting one", markup=False, soft_wrap=True)
    config, task = _prepare(request)
    with run.lock():
        _save_new(run, config, task)
        yield OpenedRun(config, task, run, resume)


def _reopen(request: Request, run: "Run") -> tuple["Config", "Task"]:
    from qkv import runs, tasks
    from qkv.records import from_mapping
    from qkv.train import Settings
    from qkv.train.distributed import get_rank

    config = runs.read_config(run, resume=True)
    require_same_run(config, run.folder, request.task, request.preset, request.changes)
    runs.require_unchanged(run.folder, "start another training with another --run")
    steps = request.changes.get("train", {}).get("steps")
    if steps not in (None, config.train.steps):
        train = from_mapping(Settings, {**asdict(config.train), "steps": steps}, "training setting")
        config = replace(config, train=train)
        if get_rank() == 0:
            run.reopen(steps)
    task = tasks.tasks[config.task].load(config.data)
    runs.require_same_vocabulary(run, task.vocabulary())
    return config, task


def _prepare(request: Request) -> tuple["Config", "Task"]:
    """Return the configuration and the data of a new run; what cannot be trained raises before a folder exists."""
    from qkv import runs, tasks
    from qkv.train.ema import require_no_split_batch_norm

    config = runs.configure(
        request.task, runs.preset(request.task, request.preset, request.changes.get("data")), request.changes
    )
    task = tasks.tasks[request.task].load(config.data)
    for warning in task.warnings:
        console(stderr=True).print(warning, markup=False)
    config = replace(config, data=task.options)
    model = runs.build(config, task)
    runs.validate(config, task, model)
    require_no_split_batch_norm(model, config.train)
    return config, task


def _save_new(run: "Run", config: "Config", task: "Task") -> None:
    from qkv import runs
    from qkv.train import create_run
    from qkv.train.distributed import get_rank

    if get_rank() == 0:
        runs.save_config(create_run(run.folder), config, task)
