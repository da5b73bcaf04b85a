"""What `qkv cost` is asked about: a preset, a run folder, somebody's factory, a Hugging Face config; on no weights.

pronounce:quick          a task's preset            runs/mine          a run folder
package.module:function  gives an nn.Module         config.json        of a Hugging Face model
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import nn

from qkv.cost import Input
from qkv.models import family
from qkv.registry import unknown_name_error
from qkv.runs.load import Config, configure, preset, read_config
from qkv.storage import QkvError, open_file, read_json
from qkv.tasks.base import Task, ModelSizes, tasks
from qkv.tasks.classification import ClassificationTask
from qkv.train import Run


@dataclass(frozen=True)
class Subject:
    """A module and how it is called."""

    label: str
    module: nn.Module
    inputs: tuple[Input, ...]
    options: dict[str, Any] = field(default_factory=dict)
    longest: int | None = None
    """The most tokens that it takes; None: not known."""
    note: str | None = None
    """Where its sizes are from, if no data were read for them."""


def find(spec: str, inputs: Sequence[str] = ()) -> Subject:
    """The module that a word on the command line means; `inputs` in words such as float[1,n,768]."""
    given = tuple(Input.parse(text) for text in inputs)
    path = Path(spec)
    if path.suffix == ".json" or path.is_file():
        return _from_config(path, given)
    if path.is_dir():
        return _from_folder(path, given)
    name, colon, chosen = spec.partition(":")
    if name in tasks:
        return _from_preset(name, chosen or None, given)
    if colon:
        return _from_factory(name, chosen, given)
    raise unknown_name_error(
        "task, block or folder", spec, [*tasks, "attention", "multi_head", "feed_forward", "encoder", "decoder"]
    )


def _from_preset(task: str, chosen: str | None, given: tuple[Input, ...]) -> Subject:
    config = configure(task, preset(task, chosen), {})
    try:
        outline = tasks[task].model_sizes(config.data) or _outline(tasks[task].load(config.data))
    except QkvError as error:
        raise QkvError(f"the sizes of {task} come from its data; train a run and name its folder ({error})") from None
    return _of_outline(f"{task}:{chosen or next(iter(tasks[task].presets))}", outline, config, given)


def _from_folder(folder: Path, given: tuple[Input, ...]) -> Subject:
    if "model_type" in _load(folder / "config.json"):
        return _from_config(folder / "config.json", given)
    config = read_config(Run(folder))
    job = tasks[config.task].restore(config.data, read_json(folder / "vocabulary.json"))
    return _of_outline(str(folder), _outline(job), config, given)


def _from_factory(module: str, function: str, given: tuple[Input, ...]) -> Subject:
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        home = import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(f"{module}:{function}: no module named {error.name!r} here or in this environment") from error
    if not hasattr(home, function):
        raise ValueError(f"{module}:{function}: the module {module} has no {function!r}")
    factory = getattr(home, function)
    if not callable(factory):
        raise TypeError(
            f"{module}:{function} is a {type(factory).__name__}, but a function that gives a module is needed"
        )
    made = factory()
    if not isinstance(made, nn.Module):
        raise TypeError(f"{module}:{function} gives a {type(made).__name__}, but an nn.Module is needed")
    return Subject(f"{module}:{function}", made, given or _usual_inputs(made))


def _outline(job: Task) -> ModelSizes:
    return ModelSizes(job.sizes(), job.shape if isinstance(job, ClassificationTask) else None)


def _of_outline(label: str, outline: ModelSizes, config: Config, given: tuple[Input, ...]) -> Subject:
    """A model of ours: one example of a job that knows their shape, or what `forward` names."""
    chosen = family(config.family)
    with torch.random.fork_rng():  # what the weights are does not matter
        model = chosen.build(chosen.configure(config.model), *outline.sizes)
    if not given and outline.shape is not None:
        given = (Input.parse(f"float[1,{','.join(map(str, outline.shape))}]"),)
    longest = config.model.get("max_length")
    return Subject(label, model, given or _usual_inputs(model), longest=longest, note=outline.note)


def _usual_inputs(model: nn.Module) -> tuple[Input, ...]:
    """By what `forward` calls them: tokens, or a source and a target."""
    needed = [p.name for p in signature(model.forward).parameters.values() if p.default is p.empty]
    usual = {"tokens": "int[1,n]", "source": "int[1,n]", "target": "int[1,m]"}
    if not needed or any(name not in usual for name in needed):
        wanted = ", ".join(needed) or "nothing that has a name"
        raise ValueError(
            f"{type(model).__name__}.forward takes {wanted}: say what with --input, such as float[1,n,768]"
        )
    return tuple(Input.parse(usual[name]) for name in needed)


def _load(path: Path) -> dict[str, Any]:
    with open_file(path) as file:
        try:
            record = json.loads(file.read())
        except ValueError as error:
            raise QkvError(f"{path.name} is not JSON ({error})", path.parent) from None
    if not isinstance(record, dict):
        raise QkvError(f"{path.name} must hold a JSON object, but holds a {type(record).__name__}", path.parent)
    return record


def _from_config(path: Path, given: tuple[Input, ...]) -> Subject:
    """A model of Hugging Face's transformers from its config.json alone: nothing is downloaded, nothing allocated."""
    record = _load(path)
    try:
        import transformers  # noqa: PLC0415 - large, and only needed here
    except ModuleNotFoundError:
        raise QkvError("a Hugging Face config needs the package transformers: pip install transformers") from None
    kinds = transformers.CONFIG_MAPPING
    if record.get("model_type") not in kinds:
        named = unknown_name_error("model_type", record.get("model_type"), ["gpt2", "llama", "mistral", "bert", "qwen2"])
        raise QkvError(str(named).split(" (")[0] + " to the transformers that is installed", path)
    try:
        config = kinds[record["model_type"]].from_dict(record)
        model_class = _architecture(transformers, record, path)
        with torch.device("meta"):
            model = model_class._from_config(config) if hasattr(model_class, "_from_config") else model_class(config)
    except QkvError:
        raise
    except Exception as error:  # whatever the library makes of a config that does not hold together
        raise QkvError(f"no model can be built from it: {str(error).strip().splitlines()[0]}", path) from error
    caches = "use_cache" in signature(model.forward).parameters
    options = {"use_cache": True} if caches else {}
    return Subject(f"{model_class.__name__} of {path}", model, given or (Input.parse("int[1,n]"),), options)


def _architecture(transformers: Any, record: dict[str, Any], path: Path) -> Any:
    named = record.get("architectures") or []
    if named:
        if not hasattr(transformers, named[0]):
            raise QkvError(f"the architecture {named[0]!r} is not one of transformers {transformers.__version__}", path)
        return getattr(transformers, named[0])
    config = transformers.CONFIG_MAPPING[record["model_type"]]
    for mapping in (transformers.MODEL_FOR_CAUSAL_LM_MAPPING, transformers.MODEL_MAPPING):
        if config in mapping:
            return mapping[config]
    raise QkvError(f"model_type {record['model_type']!r} has no model class; name one in architectures", path)
