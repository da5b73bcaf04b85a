"""The seal of a run folder: MANIFEST.json with bytes and sha256 of the files that decide what the run answers.

A run folder is filled over weeks and holds more than it seals (metrics, checkpoints, a report). So the manifest lists
some files only, and one of them can be replaced:

    1. write the manifest with the old checksum and, under "next", the new one
    2. write the file
    3. write the manifest with the new checksum alone

A kill at any moment leaves a manifest that matches the file.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

from qkv.errors import QkvError
from qkv.storage.atomic import open_file, read_file, write_atomic
from qkv.storage.folder import MANIFEST, ManifestEntry, make_entries, parse_entries
from qkv.storage.json import MAX_BYTES, parse_json, write_json


def is_sealed(folder: Path) -> bool:
    """Return whether the folder has a manifest, valid or not."""
    return os.path.lexists(folder / MANIFEST)


def sealed_names(folder: Path) -> set[str]:
    """Return the names of the sealed files; empty without a manifest."""
    return set(_read_entries(folder)[0]) if is_sealed(folder) else set()


def seal_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a manifest of these files alone; the files themselves may be written before or after."""
    write_json(folder / MANIFEST, {"files": make_entries(files)})


def read_sealed(folder: Path, name: str) -> bytes:
    """Return the contents of a file, verified if the folder has a manifest; raise if the manifest does not list it."""
    if not is_sealed(folder):
        return _read(folder / name)
    listed, upcoming = _read_entries(folder)
    if name not in listed:
        raise QkvError(f"{name} is not in {MANIFEST}", folder)
    return _read_verified(folder, name, listed[name], upcoming.get(name))


def read_all_sealed(folder: Path) -> dict[str, bytes]:
    """Return the contents of every sealed file, verified."""
    listed, upcoming = _read_entries(folder)
    return {name: _read_verified(folder, name, entry, upcoming.get(name)) for name, entry in listed.items()}


def write_sealed(folder: Path, name: str, data: bytes) -> None:
    """Write a file and its checksum, such that a kill leaves the old file or the new one, and the seal of it."""
    listed, new = _settle(folder) if is_sealed(folder) else {}, make_entries({name: data})
    if name in listed:
        write_json(folder / MANIFEST, {"files": listed, "next": new})
    write_atomic(folder / name, data)
    write_json(folder / MANIFEST, {"files": dict(sorted({**listed, **new}.items()))})


def remove_sealed(folder: Path, name: str) -> None:
    """Remove a file and its checksum, if they are there; the checksum first: a sealed file must not be missing."""
    if is_sealed(folder):
        listed = _settle(folder)
        if listed.pop(name, None) is not None:
            write_json(folder / MANIFEST, {"files": listed})
    (folder / name).unlink(missing_ok=True)


def _settle(folder: Path) -> dict[str, Any]:
    """Return the listed entries; where a kill interrupted `write_sealed`, the entry of the file that is there."""
    record = _read_record(folder)
    listed, upcoming = record["files"], parse_entries(record.get("next", {}), folder)
    for name, entry in upcoming.items():
        with suppress(QkvError):
            data = _read(folder / name)
            entry.check(folder, name, BytesIO(data), len(data))
            listed = {**listed, **make_entries({name: data})}
    return dict(listed)


def _read_record(folder: Path) -> dict[str, Any]:
    record = parse_json(_read(folder / MANIFEST), folder / MANIFEST)
    parse_entries(record.get("files"), folder)
    return record


def _read_entries(folder: Path) -> tuple[dict[str, ManifestEntry], dict[str, ManifestEntry]]:
    """Return the listed entries, and those of files that were being replaced."""
    record = _read_record(folder)
    return parse_entries(record["files"], folder), parse_entries(record.get("next", {}), folder)


def _read_verified(folder: Path, name: str, entry: ManifestEntry, upcoming: ManifestEntry | None) -> bytes:
    size = (folder / name).stat().st_size if (folder / name).is_file() else None
    if size not in (None, entry.bytes, None if upcoming is None else upcoming.bytes):  # before it is read
        raise QkvError(f"{name} has {size} bytes, but {MANIFEST} has {entry.bytes}", folder)
    data = _read(folder / name)
    if upcoming is not None:
        with suppress(QkvError):
            upcoming.check(folder, name, BytesIO(data), len(data))
            return data
    entry.check(folder, name, BytesIO(data), len(data))
    return data


def _read(path: Path) -> bytes:
    """Return the contents of a plain file; a link to one may stand in for it."""
    if path.suffix == ".json":
        return read_file(path, MAX_BYTES)
    with open_file(path) as file:
        return file.read()
