"""A folder of somebody else's model where a run folder is expected: Hugging Face's layouts of BERT and GPT-2.

`qkv decode FOLDER`, `qkv eval FOLDER`, `qkv embed FOLDER`, `qkv look FOLDER` and the library read it as it stands, with
the tokenizer.json beside it; nothing is converted or written.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from qkv.data import Tokenizer
from qkv.interop import load_bert, load_gpt2
from qkv.storage import QkvError
from qkv.tasks.base import Task, tasks
from qkv.tasks.masked import MaskedOptions
from qkv.tasks.text import TextOptions

LOADERS: dict[str, tuple[str, str, Callable[[Path], Any]]] = {
    "bert": ("masked", "encoder", load_bert),
    "gpt2": ("text", "decoder", load_gpt2),
}
"""model_type of config.json -> the task that it answers, the family that holds it, and how it is read."""

LENGTHS = {"masked": MaskedOptions.length, "text": TextOptions.length}
"""Task -> tokens of a row that a model is measured on, if it takes as many."""


def model_type(folder: Path) -> str | None:
    """What kind of model of Hugging Face's a folder holds; None for a run folder, or for nothing of the kind."""
    with suppress(OSError, ValueError):
        record = json.loads((folder / "config.json").read_bytes())
        if isinstance(record, dict) and "format" not in record and isinstance(record.get("model_type"), str):
            return str(record["model_type"])
    return None


def restore_foreign(folder: Path, kind: str) -> tuple[tuple[str, str, dict[str, Any]], Task, nn.Module]:
    """(task, family, configuration), the job with the model's own tokenizer, and the model."""
    if kind not in LOADERS:
        there = ", ".join(LOADERS)
        raise QkvError(f"a Hugging Face model of type {kind!r} cannot be read here (there are: {there})", folder)
    task, family, load = LOADERS[kind]
    model = load(folder)
    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    options: dict[str, Any] = {"length": min(LENGTHS[task], model.config.max_length)}
    if task == "text":
        options["digest"] = tokenizer.digest  # there, a run proves that it has its tokenizer
    job = tasks[task].restore(options, tokenizer.to_record())
    return (task, family, asdict(model.config)), job, model
