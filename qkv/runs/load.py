"""Build the model of a run, and load trained runs."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.inference import MaskedLM
from qkv.models import Ensemble, family
from qkv.models.size_check import find_mismatch, require_memory
from qkv.random import derive_seed
from qkv.runs.config import Config, read_config
from qkv.runs.data_hash import hash_training_files
from qkv.runs.files import read_run_file, read_run_files
from qkv.runs.huggingface import load_huggingface, model_type
from qkv.runs.stopped import read_stopped
from qkv.storage import parse_json, seal_files, sealed_names, to_json, write_atomic
from qkv.storage.format_1 import upgrade_state_dict
from qkv.storage.safetensors_header import read_header
from qkv.tasks.base import Task, tasks
from qkv.train import Objective, Run, Settings
from qkv.train.ema import to_cpu
from qkv.train.run import START

MAX_VERIFIED = 2**28
"""Largest file of weights that is read to learn whether it was changed, once it is known not to fit the model."""


def build(config: Config, task: Task) -> nn.Module:
    """Return an untrained model; its weights are a function of the seed."""
    chosen = family(config.family)
    with torch.random.fork_rng():
        torch.manual_seed(derive_seed(config.train.seed, "initial weights"))
        model_config = chosen.configure(config.model)
        require_memory(lambda model_config: chosen.build(model_config, *task.sizes()), model_config)
        model = chosen.build(model_config, *task.sizes())
        task.init_weights(model)
        return model


def validate(config: Config, task: Task, model: nn.Module) -> None:
    """Raise if the task cannot be trained like this; called before a run folder exists."""
    task.validate_model(model)
    task.validate_settings(config.train)
    for folder in task.teacher_runs:
        read_config(Run(folder))


def make_objective(config: Config, task: Task, model: nn.Module) -> Objective:
    """Return the objective of a task; load its teachers, if it has any."""
    if not task.teacher_runs:
        return task.objective(model, config.train)
    _, other, teachers = load(*task.teacher_runs)
    if other.vocabulary() != task.vocabulary():
        folders = ",".join(map(str, task.teacher_runs))
        raise QkvError("teachers must have the vocabulary of the new model, but these have a different one", folders)
    return task.objective(model, config.train, teachers)


def save_config(run: Run, config: Config, task: Task, start: nn.Module | None = None) -> None:
    """Write and seal what a run needs before the first step; config.json last, since with it a run can resume.

    `start`: a model that does not start untrained, whose weights are saved.
    """
    records = {
        "vocabulary.json": task.vocabulary(),
        "data.json": hash_training_files(task.options),
        "config.json": replace(config, data=task.options).to_record(),
    }
    files = {} if start is None else {START: save_safetensors(to_cpu(start.state_dict()))}
    files |= {name: to_json(record) for name, record in records.items()}
    seal_files(run.folder, files)
    for name, data in files.items():
        write_atomic(run.folder / name, data)


def load(folder: Path | str, *others: Path | str) -> tuple[Config, Task, nn.Module]:
    """Load a trained run, ready to predict; with `others`, the model averages the probabilities of all runs.

    A run that was stopped gives the best weights of its newest valid checkpoint, with a `QkvWarning`.
    """
    config, task, model = _load_one(Path(folder))
    if not others:
        return config, task, model
    if not hasattr(model, "step"):
        raise QkvError(f"a model of task {config.task!r} does not decode tokens, so it cannot be averaged", folder)
    members = [model]
    for other in others:
        _, another, member = _load_one(Path(other))
        if another.vocabulary() != task.vocabulary():
            raise QkvError(f"its vocabulary is not that of {folder}: the two cannot be averaged", other)
        members.append(member)
    return config, task, Ensemble(members).eval()


def _load_one(folder: Path) -> tuple[Config, Task, nn.Module]:
    """Load a run folder or a Hugging Face folder."""
    kind = model_type(folder)
    if kind is not None:
        found = load_huggingface(folder, kind)
        untrained = Settings(steps=1)  # trained elsewhere with unknown settings
        config = Config(found.task.kind, found.family, found.config, untrained, found.task.options)
        return config, found.task, found.model
    run = Run(folder)
    config = read_config(run)
    task, name = _restore_task(config, run), run.weights.name
    if run.weights.exists() and name in (sealed_names(folder) or (name,)):
        _require_same_shapes(config, task, run)
    model = build(config, task)
    try:
        files = read_run_files(run)
        weights = load_safetensors(files[name]) if name in files else read_stopped(run, config)
        model.load_state_dict(upgrade_state_dict(weights, model.state_dict()))
    except (SafetensorError, RuntimeError) as error:
        message = str(error).split("\n")[0]
        raise QkvError(f"the weights are damaged or of another model: {message}", str(run.weights)) from error
    return config, task, model.eval()


def _restore_task(config: Config, run: Run) -> Task:
    """Return the task with its vocabulary; one of another shape raises and names the file."""
    path = run.folder / "vocabulary.json"
    vocabulary = parse_json(read_run_file(run, path.name), path)
    try:
        return tasks[config.task].restore(config.data, vocabulary)
    except ValueError as error:
        raise QkvError(str(error), path) from error


def _require_same_shapes(config: Config, task: Task, run: Run) -> None:
    """Raise unless the file of weights has the tensors of the model; nothing of their size is allocated."""
    chosen = family(config.family)
    try:
        problem = find_mismatch(
            lambda model: chosen.build(model, *task.sizes()),
            chosen.configure(config.model),
            upgrade_state_dict,
            read_header(run.weights),
        )
        if problem:
            raise QkvError(f"the weights are damaged or of another model: {problem}", str(run.weights))
    except QkvError:
        if run.weights.stat().st_size <= MAX_VERIFIED:
            read_run_files(run)  # raises if it was changed, which is the better reason
        raise


def load_masked_lm(folder: str | Path) -> MaskedLM:
    """Load a run of task `masked`, or a Hugging Face BERT, to fill masks and embed sentences."""
    _, task, model = load(Path(folder))
    found = task.masked_lm(model)
    if found is None:
        raise ValueError(f"{folder} is a run of task {task.kind!r}; filling and embedding need one of task 'masked'")
    return found


def embed(folder: str | Path, texts: Sequence[str], *, normalize: bool = True, truncate: bool = False) -> Tensor:
    """Return sentence vectors (texts, dim) from a run of task `masked`.

    To embed often, keep the result of `load_masked_lm`: it loads the model once.
    """
    return load_masked_lm(folder).embed(texts, normalize=normalize, truncate=truncate)
