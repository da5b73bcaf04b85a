"""The data behind the page: a trained run (here), or attention tensors (`external`)."""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence, Sized
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from safetensors.torch import save
from torch import nn

from qkv import runs, tasks
from qkv.errors import QkvError
from qkv.explain import observe
from qkv.inference import TextInput
from qkv.inference.candidates import Candidates
from qkv.inference.source_text import longest_source
from qkv.inference.text_input import TokenSequence
from qkv.pronunciation.bundled import NAME, run_folder
from qkv.train import Run
from qkv.train.ema import to_cpu
from qkv.web.params import Params, get_text
from qkv.web.view_model import ModelViewModel, ViewModel

CACHE_SIZE = 4
"""Inputs whose forward passes are kept, so that another head needs no new pass."""


class TargetReader(Protocol):
    """The part of a `TextInput` that writes a target."""

    targets: Sized
    """Vocabulary of the targets."""

    def read(self, text: str) -> TokenSequence:
        """Return the tokens of a source."""
        ...

    def read_target(self, text: str) -> TokenSequence:
        """Return the tokens of a given target."""
        ...

    def predict_target(self, source: TokenSequence) -> TokenSequence:
        """Return the target that the model generates."""
        ...

    def target_names(self, ids: Sequence[int]) -> list[str]:
        """Return each target id as people read it."""
        ...


class Backend(ABC):
    """The model or the tensors that a page shows. Not thread-safe: a server calls it from one thread."""

    model: nn.Module | None = None
    """None if only matrices are known."""
    target_reader: TargetReader | None = None
    """Reader and writer of targets; None if the model generates none."""

    @abstractmethod
    def about(self) -> dict[str, Any]:
        """Return name, size and origin."""

    @abstractmethod
    def view_model(self, params: Params) -> ViewModel:
        """Return the view model of the requested input."""

    def candidates(self, params: Params) -> list[Candidates]:
        """Return what the model says about the requested input."""
        return []

    def restore_code(self, *imports: str) -> list[str]:
        """Return Python lines that restore the model, with these import lines sorted in."""
        return []


class RunBackend(Backend):
    """A trained run; the name `pronounce` is the bundled model."""

    model: nn.Module

    def __init__(self, run: Path, device: str = "cpu"):
        self.run, self.folder = run, run_folder(run)
        self.config, self.task, model = runs.load(self.folder)
        self.model = model.to(device)
        text_input = self.task.text_input(self.model)
        if text_input is None:
            raise QkvError(f"a run of task {self.config.task!r} has no attention to show", self.folder)
        self.text_input: TextInput = text_input
        if text_input.writes:
            self.target_reader = cast("TargetReader", text_input)
        saved = Run(self.folder).weights  # a stopped run has none yet
        data = saved.read_bytes() if saved.exists() else save(to_cpu(self.model.state_dict()))
        self.weights_hash = sha256(data).hexdigest()
        self._view_models: OrderedDict[tuple[str, str], ModelViewModel] = OrderedDict()

    def about(self) -> dict[str, Any]:
        """Return the model's size, settings and origin."""
        parameter = next(self.model.parameters())
        return {
            "name": self.run.name,
            "run": str(self.run),
            "task": self.config.task,
            "family": self.config.family,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "hash": self.weights_hash[:12],
            "seed": self.config.train.seed,
            "torch": torch.__version__,
            "dtype": str(parameter.dtype).removeprefix("torch."),
            "device": str(parameter.device),
            "longest": longest_source(self.model),
            "text": self.text_input.example,
            "writes": self.text_input.writes,
        }

    def view_model(self, params: Params) -> ModelViewModel:
        """Run the model on `text`; its target is `answer`, or by default what it generates."""
        key = get_text(params, "text"), get_text(params, "answer")
        if key not in self._view_models:
            self._view_models[key] = self._observe(*key)
            while len(self._view_models) > CACHE_SIZE:
                self._view_models.popitem(last=False)
        self._view_models.move_to_end(key)
        return self._view_models[key]

    def candidates(self, params: Params) -> list[Candidates]:
        """Return the candidates that the model predicts for `text`, with their probabilities."""
        return self.text_input.candidates(self.text_input.read(get_text(params, "text")))

    def restore_code(self, *imports: str) -> list[str]:
        """Return Python lines that restore this model, with these import lines sorted in."""
        if self.run != self.folder:
            standard, own, folder = [], ["from qkv.pronunciation.bundled import model_folder"], "model_folder()"
        else:
            standard, own, folder = ["from pathlib import Path", ""], [], f"Path({str(self.folder)!r})"
        lines = sorted(["from qkv import runs", *imports, *own])
        return [*standard, *lines, "", f"_, task, model = runs.load({folder})"]

    def _observe(self, text: str, answer: str) -> ModelViewModel:
        source = self.text_input.read(text)
        code = self.restore_code("from qkv.explain import observe")
        if self.target_reader is None:
            records = observe(self.model, source.ids)
            code.append(f"records = observe(model, {source.ids})")
            return ModelViewModel(records, {records[0].site.rows: source.tokens}, source.notes, code)
        reader = self.target_reader
        target = reader.read_target(answer) if answer.strip() else reader.predict_target(source)
        records = observe(self.model, source.ids, target.ids)
        code.append(f"records = observe(model, {source.ids}, {target.ids})")
        tokens = {
            "source": source.tokens,
            "target": ["START", *target.tokens],
            "generated": [*target.tokens, "END"],
        }
        return ModelViewModel(records, tokens, source.notes + target.notes, code)


def newest_run(parent: Path) -> Path:
    """Return the latest finished run folder whose model has attention to show; default: the bundled model."""
    finished = [path.parent for path in parent.glob("*/model.safetensors") if _can_be_shown(path.parent)]
    return max(finished, key=lambda folder: (folder / "model.safetensors").stat().st_mtime, default=Path(NAME))


def _can_be_shown(folder: Path) -> bool:
    """Return whether the run's task reads tokens; True for a damaged run, so that opening it raises the error."""
    try:
        return tasks.tasks[runs.read_config(Run(folder)).task].reads_tokens()
    except (QkvError, ValueError):
        return True
