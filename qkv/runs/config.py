"""The configuration of a run: a preset with changes, as config.json stores it."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qkv.errors import QkvError, unknown_name_error
from qkv.models import family
from qkv.records import from_mapping, require_fields
from qkv.runs.files import read_run_file, require_seal
from qkv.runs.huggingface import model_type
from qkv.storage import parse_json
from qkv.storage.atomic import missing_error
from qkv.storage.format_1 import upgrade_config
from qkv.tasks.base import Preset, tasks
from qkv.train import Run, Settings

_FIELDS = {"task": str, "family": str, "model": dict, "train": dict, "data": dict}


@dataclass(frozen=True)
class Config:
    """Everything that decides a run."""

    task: str
    family: str
    model: dict[str, Any]
    train: Settings
    data: dict[str, Any]
    preset: str | None = None
    """Name of the preset, where one was chosen by name."""
    start: dict[str, Any] | None = None
    """Path and sha256 of the weights that the training started from; None: untrained ones."""

    def to_record(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_record(cls, record: dict[str, Any], where: Path) -> "Config":
        """Build the configuration from a file's contents; an incomplete one raises."""
        try:
            require_fields(record, _FIELDS)
            train = from_mapping(Settings, record["train"], "training setting")
            family(record["family"]).configure(record["model"])
            preset, start = record.get("preset"), record.get("start")
            if not isinstance(preset, str | None) or not isinstance(start, dict | None):
                raise TypeError(f"preset must be text and start an object, got {preset!r} and {start!r}")
            return cls(record["task"], record["family"], record["model"], train, record["data"], preset, start)
        except (TypeError, ValueError) as error:
            raise QkvError(f"the configuration is incomplete or from another version: {error}", str(where)) from error


def preset(task: str, name: str | None, data: dict[str, Any] | None = None) -> Preset:
    """Return a preset of a task by name (default: the one for these data options, mostly its first)."""
    presets = tasks[task].presets
    if name is not None and name not in presets:
        raise unknown_name_error(f"preset of task {task!r}:", name, presets)
    return presets[name or tasks[task].default_preset(data or {})]()


def configure(task: str, chosen: Preset, changes: dict[str, dict[str, Any]]) -> Config:
    """Return the preset with changes to "model", "train" and "data"; `model.family` changes the family."""
    own = changes.get("model", {})
    model = {**chosen.model, **own}
    name = model.pop("family", chosen.family)
    if name != chosen.family:
        model = {key: value for key, value in model.items() if key in own}
    train = {**chosen.train, **changes.get("train", {})}
    for given, other in (("steps", "minutes"), ("minutes", "steps")):
        if given in changes.get("train", {}) and other not in changes["train"]:
            train.pop(other, None)
    settings = from_mapping(Settings, train, "training setting")
    data = {**chosen.data, **changes.get("data", {})}
    return Config(task, name, asdict(family(name).configure(model)), settings, data)


def read_config(run: Run, *, resume: bool = False) -> Config:
    """Read the configuration of a run folder; to `resume` it, a missing manifest is no error."""
    path = run.folder / "config.json"
    if not run.folder.is_dir():
        nearest = missing_error("run folder", run.folder).nearest
        raise QkvError(
            "there is no such run folder", str(run.folder), str(run.folder.parent / nearest) if nearest else ""
        )
    if model_type(run.folder) is not None:
        raise QkvError("this is a Hugging Face model, which can predict but has no run to resume", run.folder)
    if not resume:
        require_seal(run)
    return Config.from_record(parse_json(read_run_file(run, path.name), path, upgrade_config), path)
