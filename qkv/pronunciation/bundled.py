"""The model in the package: config.json, vocabulary.json and model.safetensors, listed in MANIFEST.json.

It is a run folder without checkpoints and logs, so it is accepted wherever a run is. If the folder has a joint n-gram
model, that is used too.
"""

import json
from pathlib import Path

from qkv.errors import QkvError
from qkv.storage import FORMAT, open_file, parse_json, read_sealed, save_folder, verify_folder
from qkv.storage.format_1 import upgrade_config

FOLDER = Path(__file__).with_name("model")
MODEL_FILES = ("config.json", "vocabulary.json", "model.safetensors")
JOINT_FILE = "joint.bin"
NAME = "pronounce"
"""Name of the bundled model on the command line."""

MODEL_MISSING = (
    "the bundled model is not here; train one with `qkv train pronounce --run runs/mine` and name its folder: "
    "`qkv pronounce --model runs/mine`, `qkv eval runs/mine`, Pronouncer(model='runs/mine')"
)


def model_folder(named: Path | str | None = None) -> Path:
    """Return the run folder to load a model from: the named one, or the bundled one after checking its manifest."""
    if named is not None:
        if not Path(named).is_dir():
            raise QkvError(f"there is no run folder {named} to take a model from")
        return Path(named)
    if not FOLDER.is_dir():
        raise QkvError(MODEL_MISSING)
    verify_folder(FOLDER)
    return FOLDER


def run_folder(named: Path) -> Path:
    """Return the folder of a run; `pronounce` is the bundled model."""
    return model_folder() if str(named) == NAME else named


def pack(run: Path | str, folder: Path | str = FOLDER, *, half: bool = False, card: Path | str | None = None) -> None:
    """Pack a run as the bundled model, atomically: its three files, its joint n-gram model if any, and a manifest.

    `half` stores weights in float16; loading converts them back to float32. `card` is a model card: README.md.
    Paths of training files and teachers are reduced to file names.
    """
    contents = {name: read_sealed(Path(run), name) for name in MODEL_FILES}
    others = {} if card is None else {"README.md": Path(card)}
    if (Path(run) / JOINT_FILE).exists():
        others[JOINT_FILE] = Path(run) / JOINT_FILE
    for name, path in others.items():
        with open_file(path) as file:
            contents[name] = file.read()
    contents["config.json"] = _strip_folders(contents["config.json"])
    if half:
        contents["model.safetensors"] = _halve(contents["model.safetensors"])
    save_folder(Path(folder), contents)


def _halve(weights: bytes) -> bytes:
    from safetensors.torch import load, save

    return save({name: x.half() if x.is_floating_point() else x for name, x in load(weights).items()})


def _strip_folders(config: bytes) -> bytes:
    """Reduce paths to file names: the folders of the training machine are private."""
    record = {"format": FORMAT, **parse_json(config, Path("config.json"), upgrade_config)}
    for name in ("train_file", "test_file", "unlabeled", "teachers"):
        if record["data"].get(name):
            record["data"][name] = ",".join(Path(part.strip()).name for part in record["data"][name].split(","))
    return (json.dumps(record, indent=1) + "\n").encode()
