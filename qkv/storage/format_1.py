"""Files of format 1, read with the names of format 2.

    config.json                    train, data and model settings           `upgrade_config`
    checkpoints/*/progress.json    settings of the resume check             `upgrade_progress`
    checkpoints/*/*.safetensors    file names, keys of the state dicts      `CHECKPOINT_FILES`, `upgrade_state_dict`
    model.safetensors              keys of the state dict                   `upgrade_state_dict`

Only names have changed, so a run of format 1 resumes bit for bit. Its files are never rewritten in place: what is saved
after resuming has format 2. Optimizer state is stored by the index of the parameter and needs no new names.
"""

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

Value = TypeVar("Value")

TRAIN_SETTINGS = {
    "clip": "max_grad_norm",
    "average": "ema_decay",
    "smoothing": "label_smoothing",
    "every": "validate_every",
    "accumulate": "accumulation_steps",
}
DATA_SETTINGS = {"tokeniser": "tokenizer", "unlabelled": "unlabeled"}
MODEL_SETTINGS = {"network": {"normalisation": "normalization", "initialisation": "initialization"}}
"""Family -> names of its settings."""
PROGRESS_ENTRIES = {"identity": "resume_check"}
CHECKPOINT_FILES = {"optimiser": "optimizer", "average": "ema"}
"""Names of the safetensors files of a checkpoint, without the ending."""
MODULES = {
    "read": "source_embedding",
    "write": "target_embedding",
    "places": "positions",
    "read_places": "source_positions",
    "write_places": "target_positions",
    "predict": "lm_head",
    "follow": "next_sentence_head",
    "centre": "center",
}
"""First part of a state-dict key: modules and parameters of a model."""
FEED_FORWARD = {"enter": "up", "leave": "down"}
"""Part of a state-dict key after `feed_forward`."""


def upgrade_config(record: dict[str, Any]) -> dict[str, Any]:
    """Return the record of config.json with the setting names of format 2."""
    groups = {"train": TRAIN_SETTINGS, "data": DATA_SETTINGS, "model": MODEL_SETTINGS.get(record.get("family", ""), {})}
    present = {group: names for group, names in groups.items() if isinstance(record.get(group), dict)}
    return {**record, **{group: _rename(record[group], names) for group, names in present.items()}}


def upgrade_train_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return training settings with the names of format 2."""
    return _rename(settings, TRAIN_SETTINGS)


def upgrade_progress(record: dict[str, Any]) -> dict[str, Any]:
    """Return the record of progress.json with the names of format 2."""
    record = _rename(record, PROGRESS_ENTRIES)
    check = record["resume_check"]
    return {**record, "resume_check": {**check, "settings": _rename(check["settings"], TRAIN_SETTINGS)}}


def upgrade_state_dict(weights: Mapping[str, Value], names: Collection[str]) -> dict[str, Value]:
    """Return a state dict with the keys of format 2; `names` are the keys of the model it is for.

    A key is renamed only if the model has the new one and not the old one. So a state dict of format 2 stays as it is,
    and so does that of another package's model which happens to have a module called `read`.
    """
    expected = set(names)
    upgraded = {}
    for old, value in weights.items():
        new = upgrade_key(old)
        upgraded[new if old not in expected and new in expected else old] = value
    return upgraded


def upgrade_key(key: str) -> str:
    """Return a state-dict key in the names of format 2: read.weight -> source_embedding.weight."""
    parts = key.split(".")
    parts[0] = MODULES.get(parts[0], parts[0])
    for index in range(1, len(parts)):
        if parts[index - 1] == "feed_forward":
            parts[index] = FEED_FORWARD.get(parts[index], parts[index])
    return ".".join(parts)


def _rename(record: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in record.items()}
