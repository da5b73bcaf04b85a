"""A case: files that lie, and the command that reads them."""

import json
import os
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkv.storage import MANIFEST, seal_files

Arguments = list[str | bytes]
Damage = Callable[[Path], None]


@dataclass(frozen=True)
class Case:
    """A name, and a function that writes the files into an empty folder and returns the arguments of `qkv`."""

    name: str
    make: Callable[[Path, Path], Arguments]
    """make(bases, folder)"""
    environment: tuple[tuple[str, str], ...] = ()
    """Environment variables; {folder} is replaced."""


def run_case(name: str, base: str, damage: Damage, *command: str) -> Case:
    """Return the case of a copy of the folder `base`, damaged; RUN in `command` is that copy."""

    def make(bases: Path, folder: Path) -> Arguments:
        shutil.copytree(bases / base, folder / "run")
        damage(folder / "run")
        if (folder / "run" / MANIFEST).exists():
            _seal(folder / "run")  # whoever lies can also write checksums
        return [str(folder / "run") if word == "RUN" else word for word in command]

    return Case(name, make)


def _seal(run: Path) -> None:
    """Write the manifest of the plain files that are there, as far as they are small."""
    names = ("config.json", "vocabulary.json", "data.json", "model.safetensors")
    plain = [path for name in names if (path := run / name).is_file() and path.stat().st_size < 2**30]
    seal_files(run, {path.name: path.read_bytes() for path in plain})
    record = json.loads((run / MANIFEST).read_text())
    for name in names:  # of the others the checksum does not matter
        size = (run / name).stat().st_size if (run / name).is_file() else 0
        record["files"].setdefault(name, {"bytes": size, "sha256": "0" * 64})
    (run / MANIFEST).write_text(json.dumps(record))


def edit_json(file: str, *keys: str, value: Any = None, remove: bool = False) -> Damage:
    """Return the damage of one value in a JSON file: that of the key `keys[-1]` inside the others."""

    def damage(run: Path) -> None:
        record = json.loads((run / file).read_text())
        inner = record
        for key in keys[:-1]:
            inner = inner[key]
        if remove:
            del inner[keys[-1]]
        else:
            inner[keys[-1]] = value
        (run / file).write_text(json.dumps(record))

    return damage


def replace_file(file: str, data: bytes) -> Damage:
    """Return the damage of other contents."""
    return lambda run: write(run / file, data)


def replace_node(file: str, node: str) -> Damage:
    """Return the damage of something that is no plain file: fifo, zero (/dev/zero), random, folder or socket."""
    return lambda run: make_node(run / file, node)


def write(path: Path, data: bytes) -> None:
    """Write a file, in place of what is there."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def make_node(path: Path, node: str) -> None:
    """Make a file system entry that is no plain file."""
    path.unlink(missing_ok=True)
    if node == "fifo":
        os.mkfifo(path)
    elif node == "folder":
        path.mkdir()
    elif node == "socket":
        here = Path.cwd()
        os.chdir(path.parent)  # the path of a socket has at most 108 characters
        try:
            socket.socket(socket.AF_UNIX).bind(path.name)
        finally:
            os.chdir(here)
    else:
        path.symlink_to(f"/dev/{node}")


def make_sparse(path: Path, size: int, start: bytes = b"") -> None:
    """Make a file of `size` bytes that takes no room on the disk: zeros after `start`."""
    with path.open("wb") as file:
        file.write(start)
        file.truncate(size)
