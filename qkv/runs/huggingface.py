"""Hugging Face folders in place of run folders: BERT and GPT-2.

`qkv predict FOLDER`, `qkv eval FOLDER`, `qkv embed FOLDER`, `qkv look FOLDER` and the library read them as they are,
with the tokenizer.json in the folder. Nothing is converted or written.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from qkv.data import Tokenizer
from qkv.errors import QkvError
from qkv.interop import load_bert, load_gpt2
from qkv.storage import load_json, read_file
from qkv.storage.json import MAX_BYTES
from qkv.tasks.base import Task, tasks
from qkv.tasks.masked import MaskedOptions
from qkv.tasks.text_source import TextOptions


class Layout(NamedTuple):
    """Loader and task of a Hugging Face model type."""

    task: str
    family: str
    load: Callable[[Path], Any]
    eval_length: int
    """Tokens per evaluated row, if the model takes that many."""


LAYOUTS = {
    "bert": Layout("masked", "encoder", load_bert, MaskedOptions.length),
    "gpt2": Layout("text", "decoder", load_gpt2, TextOptions.length),
}
"""model_type of config.json -> layout."""


class HuggingFaceModel(NamedTuple):
    """A loaded folder: the task with the model's own tokenizer, the family, its configuration, the model."""

    task: Task
    family: str
    config: dict[str, Any]
    model: nn.Module


def model_type(folder: Path) -> str | None:
    """Return the model type of a Hugging Face folder; None: a run folder, or no model at all."""
    path = folder / "config.json"
    with suppress(QkvError, OSError):  # the reader of a run folder reports them
        record = load_json(read_file(path, MAX_BYTES), path)
        if "format" not in record and isinstance(record.get("model_type"), str):
            return str(record["model_type"])
    return None


def load_huggingface(folder: Path, kind: str) -> HuggingFaceModel:
    """Load a Hugging Face folder of this model type."""
    if kind not in LAYOUTS:
        supported = ", ".join(LAYOUTS)
        raise QkvError(f"Hugging Face models of type {kind!r} are not supported (supported: {supported})", folder)
    layout = LAYOUTS[kind]
    model = layout.load(folder)
    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    options: dict[str, Any] = {"length": min(layout.eval_length, model.config.max_length)}
    if layout.task == "text":
        options["digest"] = tokenizer.digest  # `restore` verifies it
    task = tasks[layout.task].restore(options, tokenizer.to_record())
    return HuggingFaceModel(task, layout.family, asdict(model.config), model)
