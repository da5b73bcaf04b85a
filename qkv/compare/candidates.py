"""Who takes part in a comparison: attention kinds, position schemes or whole model families, written in one line.

softmax,taylor(order=4),taylor:key_dim=16        spec[:SETTING=VALUE[;SETTING=VALUE]], split at outer commas
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from qkv.models import family
from qkv.models.builders import mechanism
from qkv.positions import schemes
from qkv.records import read_value
from qkv.runs.load import Config, configure, preset
from qkv.tasks.base import Preset, tasks

Changes = dict[str, dict[str, Any]]
_OPEN, _CLOSE = "([{", ")]}"


@dataclass(frozen=True)
class Contestant:
    """A name for the table, and what to train; its learning rate and seed are the first of several."""

    name: str
    config: Config


@dataclass(frozen=True)
class Field:
    """The texts that say who takes part; `models` stands alone, the other two make a product."""

    attention: str | None = None
    positions: str | None = None
    models: str | None = None


@dataclass(frozen=True)
class Spec:
    """One part of such a text."""

    text: str
    name: str
    settings: dict[str, Any]


def parse_specs(text: str, option: str) -> list[Spec]:
    """The parts of a text; the same one twice is refused."""
    specs = [_parse_spec(part, option, text) for part in split_outside(text, ",")]
    for spec in specs:
        if [other.text for other in specs].count(spec.text) > 1:
            raise ValueError(f"{option} {text!r}: {spec.text!r} is there twice")
    return specs


def split_outside(text: str, separator: str) -> list[str]:
    """The text cut at separators that stand in no brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in _OPEN) - (character in _CLOSE)
        if character == separator and depth <= 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def enter(task: str, chosen: str | None, changes: Changes, field: Field) -> list[Contestant]:
    """All contestants with their configurations; a name that names nothing is an error, an impossible pair is not yet.

    `chosen` is a preset of the task (None: the first), `changes` are for everybody; a contestant's own settings win.
    """
    if field.models is not None:
        if field.attention is not None or field.positions is not None:
            raise ValueError("--models makes contestants of families; leave out --attention and --positions beside it")
        if "family" in changes.get("model", {}):
            raise ValueError("--models names the families; leave out --set model.family beside it")
        specs = parse_specs(field.models, "--models")
        return [Contestant(s.text, _configure(task, _of_family(task, chosen, s.name), changes, s)) for s in specs]
    if field.attention is None and field.positions is None:
        raise ValueError("nobody to compare: give --attention, --positions or --models")
    kinds = [None] if field.attention is None else parse_specs(field.attention, "--attention")
    places = [None] if field.positions is None else parse_specs(field.positions, "--positions")
    return [
        _pair(task, preset(task, chosen), changes, (("attention", kind), ("positions", place)))
        for kind, place in product(kinds, places)
    ]


def _parse_spec(part: str, option: str, text: str) -> Spec:
    name, _, rest = part.partition(":")
    if not name.strip():
        raise ValueError(f"{option} {text!r}: expected names separated by commas, such as softmax,taylor:key_dim=16")
    settings = {}
    for setting in split_outside(rest, ";") if rest.strip() else []:
        key, equals, value = setting.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise ValueError(f"{option} {part!r}: expected {name}:SETTING=VALUE;SETTING=VALUE, got {setting!r}")
        settings[key.strip()] = read_value(value.strip())
    return Spec(part, name.strip(), settings)


def _of_family(task: str, chosen: str | None, name: str) -> Preset:
    """The chosen preset if it is of this family, else the task's first one that is, else the family's own defaults."""
    family(name)
    first = preset(task, chosen)
    presets = [first, *(make() for make in tasks[task].presets.values())]
    found = next((one for one in presets if one.family == name), Preset(name, {}, first.train))
    return replace(found, data=first.data)


def _pair(task: str, chosen: Preset, changes: Changes, parts: Iterable[tuple[str, Spec | None]]) -> Contestant:
    given = [(setting, spec) for setting, spec in parts if spec is not None]
    settings: dict[str, Any] = {}
    for setting, spec in given:
        settings |= {setting: spec.name, **spec.settings}
    text = " + ".join(spec.text for _, spec in given)
    return Contestant(text, _configure(task, chosen, changes, Spec(text, text, settings)))


def _configure(task: str, chosen: Preset, changes: Changes, spec: Spec) -> Config:
    if "minutes" in changes.get("train", {}) and "steps" not in changes.get("train", {}):
        chosen = replace(chosen, train={name: value for name, value in chosen.train.items() if name != "steps"})
    own = {**changes, "model": {**changes.get("model", {}), **spec.settings}}
    config = configure(task, chosen, own)
    if "positions" in config.model:  # a Transformer, which learns of a wrong name only when it is built
        for setting in ("attention", "cross"):
            mechanism(config.model.get(setting, "softmax"), config.model["dim"])
        if config.model["positions"] != "none":
            schemes[config.model["positions"]]
    return config
