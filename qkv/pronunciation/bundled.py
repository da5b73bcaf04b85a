"""The model that comes with the package: config.json, vocabulary.json and model.safetensors, listed in MANIFEST.json.

It is a run folder without the traces of its training, so everything that takes a run takes it. A joint model that is
in the folder comes with it.
"""

import json
from pathlib import Path

from qkv.storage import QkvError, open_file, save_folder, verify_folder

FOLDER = Path(__file__).with_name("model")
FILES = ("config.json", "vocabulary.json", "model.safetensors")
JOINT = "joint.bin"
NAME = "pronounce"
"""What the command line calls it."""

MISSING = (
    "the bundled model is not here; train one with `qkv train pronounce --run runs/mine` and name its folder: "
    "`qkv decode pronounce --model runs/mine`, `qkv eval runs/mine`, Pronouncer(model='runs/mine')"
)


def model_folder(named: Path | str | None = None) -> Path:
    """The run folder to take a model from: the named one, or the bundled one, which must be as it was packed."""
    if named is not None:
        if not Path(named).is_dir():
            raise QkvError(f"there is no run folder {named} to take a model from")
        return Path(named)
    if not FOLDER.is_dir():
        raise QkvError(MISSING)
    verify_folder(FOLDER)
    return FOLDER


def run_folder(named: Path) -> Path:
    """The folder of a run, which may be named `pronounce`: the bundled model."""
    return model_folder() if str(named) == NAME else named


def pack(run: Path | str, folder: Path | str = FOLDER, *, half: bool = False, card: Path | str | None = None) -> None:
    """Make the bundled model of a run: its three files, its joint model if it has one, and a manifest; all or nothing.

    With `half` its numbers are written in 16 bits, half the size; they are 32 bits again when it is loaded. A model
    card goes with it as README.md. Files and teachers are named without the folders they were in.
    """
    names = (*FILES, JOINT) if (Path(run) / JOINT).exists() else FILES
    sources = {name: Path(run) / name for name in names}
    contents = {}
    for name, path in (sources if card is None else {**sources, "README.md": Path(card)}).items():
        with open_file(path) as file:
            contents[name] = file.read()
    contents["config.json"] = _without_folders(contents["config.json"])
    if half:
        contents["model.safetensors"] = _halve(contents["model.safetensors"])
    save_folder(Path(folder), contents)


def _halve(weights: bytes) -> bytes:
    from safetensors.torch import load, save

    return save({name: x.half() if x.is_floating_point() else x for name, x in load(weights).items()})


def _without_folders(config: bytes) -> bytes:
    """Where somebody's files were is nobody else's concern."""
    record = json.loads(config)
    for name in ("train_file", "test_file", "unlabeled", "teachers"):
        if record["data"].get(name):
            record["data"][name] = ",".join(Path(part.strip()).name for part in record["data"][name].split(","))
    return (json.dumps(record, indent=1) + "\n").encode()
