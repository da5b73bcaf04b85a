"""From a name, a run folder or a config to a model that is ready."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import nn

from qkv.random import derive_seed
from qkv.models import Ensemble, family
from qkv.records import from_mapping
from qkv.registry import unknown_name_error
from qkv.storage import QkvError, read_json, write_json
from qkv.tasks.base import Task, Preset, tasks
from qkv.runs.huggingface import (model_type, restore_foreign)
from qkv.runs.data_hash import note_files
from qkv.train import Run, Settings


@dataclass(frozen=True)
class Config:
    """All that decides a run: it stands in config.json."""

    task: str
    family: str
    model: dict[str, Any]
    train: Settings
    data: dict[str, Any]

    def to_record(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_record(cls, record: dict[str, Any], where: Path) -> "Config":
        """The config of a file; one that lacks something is refused."""
        try:
            train = from_mapping(Settings, record["train"], "training setting")
            return cls(record["task"], record["family"], record["model"], train, record["data"])
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise QkvError(f"the configuration is incomplete or from another version: {error}", str(where)) from error


def preset(task: str, name: str | None) -> Preset:
    """The preset of this name for a task, its first without one."""
    presets = tasks[task].presets
    if name is not None and name not in presets:
        raise unknown_name_error(f"preset of task {task!r}:", name, presets)
    return presets[name or next(iter(presets))]()


def configure(task: str, chosen: Preset, changes: dict[str, dict[str, Any]]) -> Config:
    """The preset with changes to "model", "train" and "data"; `model.family` changes the family."""
    model = {**chosen.model, **changes.get("model", {})}
    name = model.pop("family", chosen.family)
    if name != chosen.family:
        model = {key: value for key, value in model.items() if key in changes.get("model", {})}
    train = {**chosen.train, **changes.get("train", {})}
    for given, other in (("steps", "minutes"), ("minutes", "steps")):
        if given in changes.get("train", {}) and other not in changes["train"]:
            train.pop(other, None)
    data = {**chosen.data, **changes.get("data", {})}
    return Config(task, name, asdict(family(name).configure(model)), from_mapping(Settings, train, "training setting"), data)


def build(config: Config, job: Task) -> nn.Module:
    """A fresh model; its weights are a function of the seed."""
    chosen = family(config.family)
    with torch.random.fork_rng():
        torch.manual_seed(derive_seed(config.train.seed, "initial weights"))
        model = chosen.build(chosen.configure(config.model), *job.sizes())
        job.init_weights(model)
        return model


def write(run: Run, config: Config, job: Task) -> None:
    """What a run folder needs before the first step; the configuration comes last, since with it a run can go on."""
    write_json(run.folder / "vocabulary.json", job.vocabulary())
    note_files(run.folder, job.options)
    write_json(run.folder / "config.json", replace(config, data=job.options).to_record())


def read_config(run: Run) -> Config:
    """The config of a run folder."""
    path = run.folder / "config.json"
    if not run.folder.is_dir():
        raise QkvError("there is no such run folder", str(run.folder))
    if model_type(run.folder) is not None:
        raise QkvError("this is a Hugging Face model, which can answer but has no run to go on with", run.folder)
    return Config.from_record(read_json(path), path)


def restore(folder: Path, *others: Path) -> tuple[Config, Task, nn.Module]:
    """The trained model of a run folder, with what it needs to answer; with `others`, the mean of all their models."""
    config, job, model = _restore(folder)
    if others and not hasattr(model, "step"):
        raise QkvError(f"a model of task {config.task!r} does not write tokens, so it cannot be averaged", folder)
    members = [model]
    for other in others:
        _, theirs, model = _restore(other)
        if theirs.vocabulary() != job.vocabulary():
            raise QkvError(f"its tokens are not those of {folder}: the two cannot answer as one", other)
        members.append(model)
    return config, job, model if not others else Ensemble(members).eval()


def _restore(folder: Path) -> tuple[Config, Task, nn.Module]:
    """The trained model of a run folder, or of a Hugging Face BERT."""
    kind = model_type(folder)
    if kind is not None:
        (task, name, sizes), job, model = restore_foreign(folder, kind)
        untrained = Settings(steps=1)  # it was trained elsewhere: there is no telling how
        return Config(task, name, sizes, untrained, job.options), job, model
    run = Run(folder)
    config = read_config(run)
    job = tasks[config.task].restore(config.data, read_json(folder / "vocabulary.json"))
    model = build(config, job)
    if not run.weights.exists():
        raise QkvError("the run has no model yet; train it to the end, or go on with --resume", str(run.weights))
    try:
        model.load_state_dict(load(run.weights.read_bytes()))
    except (SafetensorError, RuntimeError) as error:
        message = str(error).split("\n")[0]
        raise QkvError(f"the weights are damaged or of another model: {message}", str(run.weights)) from error
    return config, job, model.eval()
