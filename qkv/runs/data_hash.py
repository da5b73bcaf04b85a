"""Hashes of a run's training files.

The held-out split is a function of the training file. If the file changes, examples that were trained on may move into
the split that a run is evaluated on, and nobody would notice.
"""

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

from qkv.data.shards.shard_folder import MANIFEST, is_shard_folder
from qkv.errors import QkvError
from qkv.records import require_fields
from qkv.runs.files import read_run_file
from qkv.storage import open_file, parse_json, sealed_names
from qkv.train import Run

FILE_NAME = "data.json"
HASHED_BYTES = 2**30
"""Bytes of a file that are hashed, with its length."""


def hash_training_files(options: dict[str, Any]) -> dict[str, Any]:
    """Return the record of data.json: the hash of each training file that these data options name."""
    return {"sha256": {str(path): _file_hash(path) for path in _training_files(options)}}


def require_unchanged(folder: Path, remedy: str) -> None:
    """Raise if a training file has changed; a missing file is reported when it is read."""
    path = folder / FILE_NAME
    if not path.exists() and FILE_NAME not in sealed_names(folder):
        return
    record = parse_json(read_run_file(Run(folder), FILE_NAME), path)
    try:
        require_fields(record, {"sha256": dict})
    except ValueError as error:
        raise QkvError(str(error), path) from None
    for name, digest in record["sha256"].items():
        path = Path(name)
        if path.exists() and _file_hash(path) != digest:
            raise QkvError(
                f"{path} has changed since the run was started, so the held-out split cannot be reproduced; {remedy}",
                folder,
            )


def require_same_splits(folders: Iterable[Path]) -> None:
    """Raise if these runs cannot be evaluated on their held-out splits."""
    for folder in folders:
        require_unchanged(folder, "pass --test-file")


def _training_files(options: dict[str, Any]) -> list[Path]:
    """Return the files that are trained on. Test files may change. `source` of pairs is a unit, not a file."""
    names = ("train_file", "source_file", "target_file", "unlabeled") if "train_file" in options else ("source",)
    paths = [Path(options[name]) for name in names if options.get(name)]
    return [path for path in paths if path.exists()]


def _file_hash(path: Path) -> str:
    """Return the hash of a file, or of the names and hashes of a folder's files; token shards are in their manifest."""
    if path.is_dir() and is_shard_folder(path):
        path = path / MANIFEST
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        listed = "".join(f"{file.relative_to(path)} {_file_hash(file)}\n" for file in files)
        return sha256(listed.encode()).hexdigest()
    digest, left = sha256(str(path.stat().st_size).encode()), HASHED_BYTES
    with open_file(path) as file:
        while left > 0 and (block := file.read(min(2**20, left))):
            digest.update(block)
            left -= len(block)
    return digest.hexdigest()
