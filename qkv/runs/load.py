"""Build the model of a run, and load trained runs."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.inference import MaskedLM
from qkv.models import Ensemble, family
from qkv.random import derive_seed
from qkv.runs.config import Config, read_config
from qkv.runs.data_hash import hash_training_files
from qkv.runs.files import read_run_files
from qkv.runs.huggingface import load_huggingface, model_type
from qkv.runs.stopped import read_stopped
from qkv.storage import parse_json, seal_files, to_json, write_atomic
from qkv.storage.format_1 import upgrade_state_dict
from qkv.tasks.base import Task, tasks
from qkv.train import Objective, Run, Settings


def build(config: Config, task: Task) -> nn.Module:
    """Return an untrained model; its weights are a function of the seed."""
    chosen = family(config.family)
    with torch.random.fork_rng():
        torch.manual_seed(derive_seed(config.train.seed, "initial weights"))
        model = chosen.build(chosen.configure(config.model), *task.sizes())
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


def save_config(run: Run, config: Config, task: Task) -> None:
    """Write and seal what a run needs before the first step; config.json last, since with it a run can resume."""
    records = {
        "vocabulary.json": task.vocabulary(),
        "data.json": hash_training_files(task.options),
        "config.json": replace(config, data=task.options).to_record(),
    }
    files = {name: to_json(record) for name, record in records.items()}
    seal_files(run.folder, files)
    for name, data in files.items():
        write_atomic(run.folder / name, data)


def load(folder: Path, *others: Path) -> tuple[Config, Task, nn.Module]:
    """Load a trained run, ready to predict; with `others`, the model averages the probabilities of all runs.

    A run that was stopped gives the best weights of its newest valid checkpoint, with a `QkvWarning`.
    """
    config, task, model = _load_one(folder)
    if not others:
        return config, task, model
    if not hasattr(model, "step"):
        raise QkvError(f"a model of task {config.task!r} does not decode tokens, so it cannot be averaged", folder)
    members = [model]
    for other in others:
        _, another, member = _load_one(other)
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
    files = read_run_files(run)
    vocabulary = parse_json(files["vocabulary.json"], folder / "vocabulary.json")
    task = tasks[config.task].restore(config.data, vocabulary)
    model = build(config, task)
    name = run.weights.name
    try:
        weights = load_safetensors(files[name]) if name in files else read_stopped(run, config)
        model.load_state_dict(upgrade_state_dict(weights, model.state_dict()))
    except (SafetensorError, RuntimeError) as error:
        message = str(error).split("\n")[0]
        raise QkvError(f"the weights are damaged or of another model: {message}", str(run.weights)) from error
    return config, task, model.eval()


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
