"""The files that a run learns from: whether they are still what they were.

Which lines are held out is a function of the file. One that has changed may have moved what was learned into the part
that a run is judged on, and nobody would notice.
"""

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

from qkv.storage import QkvError, open_file, read_json, write_json

NAME = "data.json"
READ = 2**30
"""Bytes of a file that are looked at; of a longer one also its length."""


def note_files(folder: Path, options: dict[str, Any]) -> None:
    """Write the digest of each file that these data settings name into the run folder."""
    write_json(folder / NAME, {"sha256": {str(path): _digest(path) for path in _files(options)}})


def require_unchanged(folder: Path, remedy: str) -> None:
    """Refuse files that have changed since; one that is gone is found out by whoever reads it."""
    if not (folder / NAME).exists():
        return
    for name, digest in read_json(folder / NAME).get("sha256", {}).items():
        path = Path(name)
        if path.exists() and _digest(path) != digest:
            raise QkvError(
                f"{path} has changed since the run was started, so what was held out is not known; {remedy}", folder
            )


def require_judgeable(folders: Iterable[Path]) -> None:
    """Refuse to judge runs on what is held out of files that have changed."""
    for folder in folders:
        require_unchanged(folder, "give what to judge on with --test-file")


def _files(options: dict[str, Any]) -> list[Path]:
    """What is trained on, not what is judged on: that may be anything. A `source` of pairs is how they are cut."""
    names = ("train_file", "unlabeled") if "train_file" in options else ("source",)
    paths = [Path(options[name]) for name in names if options.get(name)]
    return [path for path in paths if path.exists()]


def _digest(path: Path) -> str:
    """Of a file; of a folder, that of the names and digests of its files."""
    if path.is_dir():
        inside = sorted(one for one in path.rglob("*") if one.is_file())
        listed = "".join(f"{one.relative_to(path)} {_digest(one)}\n" for one in inside)
        return sha256(listed.encode()).hexdigest()
    digest, left = sha256(str(path.stat().st_size).encode()), READ
    with open_file(path) as file:
        while left > 0 and (piece := file.read(min(2**20, left))):
            digest.update(piece)
            left -= len(piece)
    return digest.hexdigest()
