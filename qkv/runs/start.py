"""Start a training from the weights of a run or of a Hugging Face folder (fine-tuning).

The new run has the model settings and the vocabulary of that model. Until training ends, its folder keeps a copy of the
initial weights, start.safetensors, so that resuming does not need the other folder.
"""

import json
import warnings
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import load as load_safetensors
from safetensors.torch import save
from torch import nn

from qkv.errors import QkvError, QkvWarning
from qkv.runs.config import Config, configure
from qkv.runs.files import read_run_file
from qkv.runs.load import load
from qkv.storage import list_steps, parse_json
from qkv.tasks.base import Preset, Task, tasks
from qkv.train import Run
from qkv.train.ema import Weights, clone_weights, to_cpu
from qkv.train.run import START

FREE_SETTINGS = ("dropout", "pretraining")
"""Model settings that may differ between the two models: they change no tensor that both have."""
VOCABULARY_SETTINGS = ("tokenizer", "size", "sample", "least")
"""Data settings that determine the vocabulary."""


class Start(NamedTuple):
    """A trained model whose weights are the initial weights of a new run."""

    folder: Path
    task: str
    family: str
    model: dict[str, Any]
    """Model settings."""
    vocabulary: dict[str, Any]
    weights: Weights
    sha256: str
    """Hash of model.safetensors; of the tensors, if that file is missing."""


def read_start(folder: Path) -> Start:
    """Load a run folder, finished or stopped, or a Hugging Face folder."""
    config, task, model = load(folder)
    weights, file = clone_weights(model), Run(folder).weights
    digest = sha256(file.read_bytes() if file.exists() else save(to_cpu(weights))).hexdigest()
    vocabulary = json.loads(json.dumps(task.vocabulary()))  # as vocabulary.json has it
    return Start(folder.absolute(), config.task, config.family, config.model, vocabulary, weights, digest)


def configure_from(start: Start, task: str, chosen: Preset, changes: dict[str, dict[str, Any]]) -> Config:
    """Return the configuration of a new run with the model settings of `start`; raise for changes to them."""
    if not _share_vocabularies(task, start.task):
        raise ValueError(
            f"--start-from {start.folder}: a model of task {start.task!r} cannot start task {task!r}, "
            "since the two read different vocabularies"
        )
    model = {**start.model, "family": start.family}
    for name, value in changes.get("model", {}).items():
        if name not in FREE_SETTINGS and value != model.get(name):
            raise ValueError(
                f"model.{name}={value} contradicts --start-from: its model has model.{name}={model.get(name)}"
            )
    for name in VOCABULARY_SETTINGS:
        if name in changes.get("data", {}):
            raise ValueError(f"data.{name} contradicts --start-from: the vocabulary is that of its model")
    adopted = replace(chosen, family=start.family, model=dict(start.model))
    found = configure(task, adopted, changes)
    return replace(found, start={"path": str(start.folder), "sha256": start.sha256})


def load_task(config: Config, vocabulary: dict[str, Any]) -> Task:
    """Return the task with its data and this vocabulary."""
    return tasks[config.task].load_with_vocabulary(config.data, vocabulary)


def copy_matching(start: Start, model: nn.Module) -> None:
    """Copy the weights with the same name and shape into the model; a `QkvWarning` names the others."""
    own = model.state_dict()
    matching = {name: x for name, x in start.weights.items() if name in own and own[name].shape == x.shape}
    if not matching:
        raise QkvError("--start-from: no tensor has the name and shape of a tensor of the new model", start.folder)
    model.load_state_dict({**own, **matching})
    for names, meaning in (
        ([name for name in own if name not in matching], "not in --start-from in this shape, so random"),
        ([name for name in start.weights if name not in own], "in --start-from, but not in the new model, so not used"),
    ):
        if names:
            warnings.warn(f"{', '.join(names)}: {meaning}", QkvWarning, stacklevel=2)


def read_copy(run: Run, config: Config) -> Weights | None:
    """Return start.safetensors; None for a run without `--start-from`, or one that has a checkpoint or is finished."""
    if config.start is None or list_steps(run.checkpoints) or run.is_finished():
        return None
    return load_safetensors(read_run_file(run, START))


def read_vocabulary(run: Run) -> dict[str, Any]:
    """Return the vocabulary of a run."""
    return parse_json(read_run_file(run, "vocabulary.json"), run.folder / "vocabulary.json")


def _share_vocabularies(task: str, other: str) -> bool:
    """Return whether both tasks read the same kind of vocabulary, that is, restore it with the same method."""
    restore, others = (getattr(tasks[name].restore, "__func__", None) for name in (task, other))
    return restore is others
