"""Resolve the SPEC of `qkv cost` to a module on torch's meta device: no weights are allocated or downloaded.

pronounce:quick          a task's preset               runs/mine      a run folder
package.module:name      an nn.Module, or what makes one   config.json    of a Hugging Face model
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import nn

from qkv.cost import Input
from qkv.errors import QkvError, nearest_name, unknown_name_error
from qkv.models import family
from qkv.runs import Config, configure, preset, read_config
from qkv.runs.files import read_run_file
from qkv.storage import open_file, parse_json
from qkv.tasks import ModelSizes, Task, tasks
from qkv.train import Run, Settings


@dataclass(frozen=True)
class ProfileTarget:
    """A module to profile and the inputs to call it with."""

    label: str
    module: nn.Module
    inputs: tuple[Input, ...]
    options: dict[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    """Maximum sequence length; None: not known."""
    note: str | None = None
    """Where the vocabulary or input sizes come from, if the data were not read."""
    settings: Settings | None = None
    """Training settings of a preset or a run."""
    own_update: bool = False
    """Whether its task updates the model itself, without an optimizer."""


def resolve_spec(
    spec: str, inputs: Sequence[str] = (), changes: Mapping[str, dict[str, Any]] | None = None
) -> ProfileTarget:
    """Return the module that `spec` names; `inputs` are specs such as float[1,n,768].

    `changes` are settings of a preset by group: model, train, data.
    """
    given = tuple(Input.parse(text) for text in inputs)
    path = Path(spec)
    if changes and (path.suffix == ".json" or path.exists() or spec.partition(":")[0] not in tasks):
        raise ValueError(f"--set changes a preset of a task, such as text:small, got {spec!r}")
    if path.suffix == ".json" or path.is_file():
        return _from_config(path, given)
    if path.is_dir():
        return _from_folder(path, given)
    name, colon, chosen = spec.partition(":")
    if name in tasks:
        return _from_preset(name, chosen or None, given, dict(changes or {}))
    if colon:
        return _from_factory(name, chosen, given)
    raise unknown_name_error(
        "task, block or folder", spec, [*tasks, "attention", "multi_head", "feed_forward", "encoder", "decoder"]
    )


def _from_preset(
    task: str, chosen: str | None, given: tuple[Input, ...], changes: dict[str, dict[str, Any]]
) -> ProfileTarget:
    config = configure(task, preset(task, chosen), changes)
    try:
        sizes = tasks[task].model_sizes(config.data) or _read_sizes(tasks[task].load(config.data))
    except QkvError as error:
        raise QkvError(f"the sizes of {task} come from its data; train a run and name its folder ({error})") from None
    return _from_model_sizes(f"{task}:{chosen or next(iter(tasks[task].presets))}", sizes, config, given)


def _from_folder(folder: Path, given: tuple[Input, ...]) -> ProfileTarget:
    if "model_type" in _read_json_object(folder / "config.json"):
        return _from_config(folder / "config.json", given)
    run = Run(folder)
    config = read_config(run)
    vocabulary = parse_json(read_run_file(run, "vocabulary.json"), folder / "vocabulary.json")
    task = tasks[config.task].restore(config.data, vocabulary)
    return _from_model_sizes(str(folder), _read_sizes(task), config, given)


def _read_sizes(task: Task) -> ModelSizes:
    return ModelSizes(task.sizes(), task.input_shape, task.input_specs)


def _from_factory(module: str, function: str, given: tuple[Input, ...]) -> ProfileTarget:
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        home = import_module(module)
    except ModuleNotFoundError as error:
        stem = module.removesuffix(".py")
        hint = f"; did you mean {stem}:{function}?" if stem != module else ""
        raise ValueError(
            f"{module}:{function}: no module named {error.name!r} here or in this environment{hint}"
        ) from error
    if not hasattr(home, function):
        near = nearest_name(function, [name for name in vars(home) if not name.startswith("_")])
        hint = f"; did you mean {module}:{near}?" if near else ""
        raise ValueError(f"{module}:{function}: the module {module} has no {function!r}{hint}")
    made = getattr(home, function)
    if not isinstance(made, nn.Module):
        if not callable(made):
            raise TypeError(
                f"{module}:{function} is of type {type(made).__name__}, but must be an nn.Module or a function "
                "that returns one"
            )
        made = made()
    if not isinstance(made, nn.Module):
        raise TypeError(f"{module}:{function} returns a {type(made).__name__}, but an nn.Module is needed")
    return ProfileTarget(f"{module}:{function}", made, given or _default_inputs(made))


def _from_model_sizes(label: str, sizes: ModelSizes, config: Config, given: tuple[Input, ...]) -> ProfileTarget:
    """Return a model of a family, built on meta; its inputs have the task's shape or follow from `forward`."""
    chosen = family(config.family)
    with torch.device("meta"):
        model = chosen.build(chosen.configure(config.model), *sizes.sizes)
    given = given or tuple(map(Input.parse, sizes.inputs))
    if not given and sizes.shape is not None:
        given = (Input.parse(f"float[1,{','.join(map(str, sizes.shape))}]"),)
    return ProfileTarget(
        label,
        model,
        given or _default_inputs(model),
        max_tokens=config.model.get("max_length"),
        note=sizes.note,
        settings=config.train,
        own_update=tasks[config.task].own_update,
    )


def _default_inputs(model: nn.Module) -> tuple[Input, ...]:
    """Return inputs by the parameter names of `forward`: tokens, or a source and a target."""
    needed = [p.name for p in signature(model.forward).parameters.values() if p.default is p.empty]
    known = {"tokens": "int[1,n]", "source": "int[1,n]", "target": "int[1,m]"}
    if not needed or any(name not in known for name in needed):
        parameters = ", ".join(needed) or "no named parameters"
        raise ValueError(
            f"{type(model).__name__}.forward takes {parameters}: describe them with --input, such as float[1,n,768]"
        )
    return tuple(Input.parse(known[name]) for name in needed)


def _read_json_object(path: Path) -> dict[str, Any]:
    with open_file(path) as file:
        try:
            record = json.loads(file.read())
        except ValueError as error:
            raise QkvError(f"{path.name} is not JSON ({error})", path.parent) from None
    if not isinstance(record, dict):
        raise QkvError(f"{path.name} must hold a JSON object, but holds a {type(record).__name__}", path.parent)
    return record


def _from_config(path: Path, given: tuple[Input, ...]) -> ProfileTarget:
    """Return a Hugging Face model built on meta from its config.json alone."""
    record = _read_json_object(path)
    try:
        import transformers  # noqa: PLC0415 - large, and only needed here
    except ModuleNotFoundError:
        raise QkvError("a Hugging Face config needs the package transformers: pip install transformers") from None
    kinds = transformers.CONFIG_MAPPING
    if record.get("model_type") not in kinds:
        raise _unknown_model_type(record.get("model_type"), list(kinds), transformers.__version__, path)
    try:
        config = kinds[record["model_type"]].from_dict(record)
        model_class = _architecture(transformers, record, path)
        with torch.device("meta"):
            model = model_class._from_config(config) if hasattr(model_class, "_from_config") else model_class(config)
    except QkvError:
        raise
    except Exception as error:  # transformers may raise anything for an inconsistent config
        raise QkvError(f"no model can be built from it: {_reason(error)}", path) from error
    caches = "use_cache" in signature(model.forward).parameters
    options = {"use_cache": True} if caches else {}
    return ProfileTarget(f"{model_class.__name__} of {path}", model, given or (Input.parse("int[1,n]"),), options)


def _unknown_model_type(name: object, known: list[str], version: str, path: Path) -> QkvError:
    if name is None:
        return QkvError('config.json has no "model_type", such as "llama"', path)
    near = nearest_name(str(name), known)
    hint = f"; did you mean {near!r}?" if near else ""
    return QkvError(f"transformers {version} has no model_type {name!r}{hint}", path)


def _reason(error: BaseException) -> str:
    """Return the message of an error in one line; a validation error has its reason on a line of its own."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)[:400] or type(error).__name__


def _architecture(transformers: Any, record: dict[str, Any], path: Path) -> Any:
    named = record.get("architectures") or []
    if named:
        if not hasattr(transformers, named[0]):
            raise QkvError(f"the architecture {named[0]!r} is not one of transformers {transformers.__version__}", path)
        return getattr(transformers, named[0])
    config = transformers.CONFIG_MAPPING[record["model_type"]]
    causal, masked = transformers.MODEL_FOR_CAUSAL_LM_MAPPING, transformers.MODEL_FOR_MASKED_LM_MAPPING
    # a model of both kinds was pretrained as a masked one; its causal form is for decoders only
    first = (causal, masked) if record.get("is_decoder") else (masked, causal)
    for mapping in (*first, transformers.MODEL_MAPPING):
        if config in mapping:
            return mapping[config]
    raise QkvError(f"model_type {record['model_type']!r} has no model class; name one in architectures", path)
