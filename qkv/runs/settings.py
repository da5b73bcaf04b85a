"""Every setting of a configuration with its value, type, default and meaning."""

from dataclasses import MISSING, dataclass, fields
from types import NoneType
from typing import Any, get_args, get_type_hints

from torch import device

from qkv.errors import QkvError
from qkv.models import family
from qkv.records import field_docs
from qkv.runs.config import Config
from qkv.tasks.base import tasks
from qkv.train import Settings


@dataclass(frozen=True)
class Setting:
    """A setting, as `--set GROUP.NAME=VALUE` changes it."""

    name: str
    """GROUP.NAME"""
    value: Any
    type: str
    default: Any
    """Value where neither the preset nor `--set` gives another."""
    meaning: str


def list_settings(config: Config) -> list[Setting]:
    """Return all settings of the model, the training and the data."""
    records = {"model": family(config.family).config, "train": Settings, "data": tasks[config.task].data_options}
    own = {"model": config.model, "train": vars(config.train), "data": config.data}
    found = [Setting("model.family", config.family, "str", config.family, "Model family; `qkv list models`.")]
    for group, record in records.items():
        if record is not None:
            found += _list_group(group, record, own[group])
    return found


def count_parameters(config: Config) -> int | None:
    """Return the number of parameters; None if the data decide and are not known yet."""
    task = tasks[config.task]
    try:
        sizes = task.model_sizes(config.data)
        known = task.load(config.data).sizes() if sizes is None else sizes.sizes
    except QkvError:
        return None
    chosen = family(config.family)
    with device("meta"):
        model = chosen.build(chosen.configure(config.model), *known)
    return sum(parameter.numel() for parameter in model.parameters())


def _list_group(group: str, record: type[Any], values: dict[str, Any]) -> list[Setting]:
    docs, hints = field_docs(record), get_type_hints(record)
    found = []
    for field in fields(record):
        default = None if field.default is MISSING else field.default
        value = values.get(field.name, default)
        found.append(
            Setting(f"{group}.{field.name}", value, _type_name(hints[field.name]), default, docs.get(field.name, ""))
        )
    return found


def _type_name(hint: Any) -> str:
    """Return `int or None` for `int | None`."""
    names = ["None" if one is NoneType else getattr(one, "__name__", str(one)) for one in get_args(hint) or (hint,)]
    return " or ".join(names)
