"""The candidates of a comparison: attention kinds, position schemes or whole model families, given in one line.

softmax,taylor(order=4),taylor:key_dim=16        spec[:SETTING=VALUE[;SETTING=VALUE]], split at outer commas
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from qkv.layers.layer_spec import read_layer
from qkv.models import family
from qkv.models.attention_pattern import distinct_kinds
from qkv.models.builders import make_attention
from qkv.positions import schemes
from qkv.records import read_value, split_outside_brackets
from qkv.runs import Config, configure, preset
from qkv.tasks import Preset, tasks

Changes = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Candidate:
    """A name for the table and a configuration; its learning rate and seed are the first of several."""

    name: str
    config: Config


@dataclass(frozen=True)
class Grid:
    """The specs of the candidates: either `models`, or the product of `attention`, `positions` and `sizes`."""

    attention: str | None = None
    positions: str | None = None
    models: str | None = None
    sizes: str | None = None
    """Settings of the model, such as dim=64;heads=2,dim=128;heads=2."""


@dataclass(frozen=True)
class CandidateSpec:
    """One item of a list of specs: a name and settings of the model."""

    text: str
    name: str
    settings: dict[str, Any]


def parse_specs(text: str, option: str) -> list[CandidateSpec]:
    """Parse a comma-separated list of specs; raise if one occurs twice."""
    specs = [_parse_spec(part, option, text) for part in split_outside_brackets(text, ",")]
    texts = [spec.text for spec in specs]
    for spec in specs:
        if texts.count(spec.text) > 1:
            raise ValueError(f"{option} {text!r}: {spec.text!r} must not occur twice")
    return specs


def make_candidates(task: str, preset_name: str | None, changes: Changes, grid: Grid) -> list[Candidate]:
    """Return all candidates with their configurations; raise for an unknown name.

    `preset_name` is a preset of the task (default: the first). `changes` apply to all candidates; a candidate's own
    settings take precedence. A pair that cannot be combined is found only when its model is built.
    """
    if grid.models is not None:
        return _family_candidates(task, preset_name, changes, grid)
    if grid.attention is None and grid.positions is None and grid.sizes is None:
        raise ValueError("nothing to compare: give --attention, --positions, --sizes or --models")
    kinds = [None] if grid.attention is None else parse_specs(grid.attention, "--attention")
    positions = [None] if grid.positions is None else parse_specs(grid.positions, "--positions")
    sizes = [None] if grid.sizes is None else _parse_sizes(grid.sizes)
    chosen = preset(task, preset_name, changes.get("data"))
    return [
        _combine(task, chosen, changes, (("attention", kind), ("positions", scheme), ("", size)))
        for kind, scheme, size in product(kinds, positions, sizes)
    ]


def _family_candidates(task: str, preset_name: str | None, changes: Changes, grid: Grid) -> list[Candidate]:
    if any(specs is not None for specs in (grid.attention, grid.positions, grid.sizes)):
        raise ValueError(
            "--models compares model families and cannot be combined with --attention, --positions or --sizes"
        )
    if "family" in changes.get("model", {}):
        raise ValueError("--models names the families and cannot be combined with --set model.family")
    candidates = []
    for spec in parse_specs(str(grid.models), "--models"):
        chosen = _family_preset(task, preset(task, preset_name, changes.get("data")), spec.name)
        candidates.append(Candidate(spec.text, _configure(task, chosen, changes, spec)))
    return candidates


def _parse_sizes(text: str) -> list[CandidateSpec]:
    parts = split_outside_brackets(text, ",")
    for part in parts:
        if not part or parts.count(part) > 1:
            raise ValueError(
                f"--sizes {text!r}: expected settings such as dim=64;heads=2,dim=128, each once, got {part!r}"
            )
    return [CandidateSpec(part, "", _parse_settings(part, "--sizes", part)) for part in parts]


def _parse_spec(part: str, option: str, text: str) -> CandidateSpec:
    name, _, rest = part.partition(":")
    if not name.strip():
        raise ValueError(f"{option} {text!r}: expected names separated by commas, such as softmax,taylor:key_dim=16")
    return CandidateSpec(part, name.strip(), _parse_settings(rest, option, part, f"{name}:"))


def _parse_settings(rest: str, option: str, part: str, before: str = "") -> dict[str, Any]:
    settings = {}
    for setting in split_outside_brackets(rest, ";") if rest.strip() else []:
        key, equals, value = setting.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise ValueError(f"{option} {part!r}: expected {before}SETTING=VALUE;SETTING=VALUE, got {setting!r}")
        settings[key.strip()] = read_value(value.strip())
    return settings


def _family_preset(task: str, given: Preset, family_name: str) -> Preset:
    """Return the given preset if it is of this family, else the task's first that is, else the family's defaults."""
    family(family_name)
    presets = [given, *(make() for make in tasks[task].presets.values())]
    defaults = Preset(family_name, {}, given.train)
    found = next((one for one in presets if one.family == family_name), defaults)
    return replace(found, data=given.data)


def _combine(
    task: str, chosen: Preset, changes: Changes, specs: Iterable[tuple[str, CandidateSpec | None]]
) -> Candidate:
    """Return the candidate with these specs, each with the model setting that it is a value of ("": several)."""
    given = [(setting, spec) for setting, spec in specs if spec is not None]
    settings: dict[str, Any] = {}
    for setting, spec in given:
        settings |= {**({setting: spec.name} if setting else {}), **spec.settings}
    text = " + ".join(spec.text for _, spec in given)
    return Candidate(text, _configure(task, chosen, changes, CandidateSpec(text, text, settings)))


def _configure(task: str, chosen: Preset, changes: Changes, spec: CandidateSpec) -> Config:
    if "minutes" in changes.get("train", {}) and "steps" not in changes.get("train", {}):
        chosen = replace(chosen, train={name: value for name, value in chosen.train.items() if name != "steps"})
    own = {**changes, "model": {**changes.get("model", {}), **spec.settings}}
    config = configure(task, chosen, own)
    if "positions" in config.model:  # a Transformer, which checks these names only when it is built
        model = config.model
        for kind in (*distinct_kinds(model.get("attention", "softmax")), model.get("cross", "softmax")):
            make_attention(read_layer(kind).kind, model["dim"])
        if config.model["positions"] != "none":
            schemes[config.model["positions"]]
    return config
