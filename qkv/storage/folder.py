"""Folders that are saved as a whole and verified when they are read.

A folder is written under a temporary name, its manifest (bytes and sha256 of every file) last, and then renamed: after
a `kill -9` or a power failure it is complete or absent.
"""

import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import file_digest, sha256
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any

from qkv.errors import QkvError
from qkv.storage.atomic import list_names, save_errors, sync_folder, write_synced
from qkv.storage.json import parse_json, to_json

MANIFEST = "MANIFEST.json"

_STEP = re.compile(r"step-(\d{8,})")


def save_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Save these files as one folder, completely or not at all.

    If the same files are there already, nothing is done. A valid folder with other files is an error; a damaged one is
    renamed to NAME.damaged-1. Parent folders are created.
    """
    for name in files:
        if not _is_plain(name):
            raise ValueError(f"files must have plain names (no folders, not {MANIFEST}), got {name!r}")
    manifest = to_json({"files": make_entries(files)})
    temporary = folder.with_name(f"{folder.name}.tmp-{os.getpid()}")
    with save_errors(folder, sum(map(len, files.values())) + len(manifest)):
        if _already_saved(folder, manifest):
            return
        make_empty_folder(temporary)
        try:
            for name, data in files.items():
                write_synced(temporary / name, data)
            commit_folder(temporary, folder, manifest)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def make_empty_folder(folder: Path) -> None:
    """Create a folder and its parents; what was in it is removed."""
    _make_folder(folder.parent)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


def commit_folder(temporary: Path, folder: Path, manifest: bytes) -> None:
    """Give a folder, whose files are on disk, its manifest and then its name; other contents of that name are kept."""
    write_synced(temporary / MANIFEST, manifest)
    sync_folder(temporary)
    if folder.is_dir() and any(folder.iterdir()):
        set_aside(folder)
    temporary.rename(folder)
    sync_folder(folder.parent)


def verify_folder(folder: Path, wanted: Callable[[str], bool] = lambda _: True) -> None:
    """Raise a QkvError that names the first file whose contents do not match the manifest; `wanted` chooses by name."""
    for name, entry in read_manifest(folder).items():
        if wanted(name):
            with open_member(folder, name) as file:
                entry.check(folder, name, file, os.fstat(file.fileno()).st_size)


def is_valid_folder(folder: Path) -> bool:
    """Return whether the folder exists and verifies."""
    if not folder.exists():
        return False
    try:
        verify_folder(folder)
    except QkvError:
        return False
    return True


def read_folder(folder: Path, wanted: Callable[[str], bool] = lambda _: True) -> dict[str, bytes]:
    """Return the contents of the files of a folder, verified against its manifest; `wanted` chooses them by name."""
    contents = {}
    for name, entry in read_manifest(folder).items():
        if not wanted(name):
            continue
        with open_member(folder, name) as file:
            data = file.read()
        entry.check(folder, name, BytesIO(data), len(data))  # the same bytes are checked and returned
        contents[name] = data
    return contents


def list_steps(parent: Path) -> list[tuple[int, Path]]:
    """Return (step, folder) for each step-XXXXXXXX in a folder, in order of steps."""
    if not parent.exists():
        return []
    matches = [(_STEP.fullmatch(name), parent / name) for name in list_names(parent)]
    return sorted((int(match[1]), path) for match, path in matches if match)


def latest_valid_step(parent: Path) -> tuple[Path | None, list[QkvError]]:
    """Return the highest step-XXXXXXXX folder that verifies, and the errors of the higher ones."""
    problems: list[QkvError] = []
    for _, path in reversed(list_steps(parent)):
        try:
            verify_folder(path)
        except QkvError as error:
            problems.append(error)
        else:
            return path, problems
    return None, problems


def set_aside(folder: Path) -> None:
    """Rename a folder to NAME.damaged-1, or to the first such number that is free."""
    number = 1
    while os.path.lexists(target := folder.with_name(f"{folder.name}.damaged-{number}")):
        number += 1
    folder.rename(target)


@dataclass(frozen=True)
class ManifestEntry:
    """Size and checksum of one file."""

    bytes: int
    sha256: str

    def check(self, folder: Path, name: str, file: BufferedReader | BytesIO, size: int) -> None:
        """Raise if the file has another size or other contents."""
        if size != self.bytes:
            raise QkvError(f"{name} has {size} bytes, but {MANIFEST} has {self.bytes}", folder)
        if file_digest(file, "sha256").hexdigest() != self.sha256:
            raise QkvError(f"{name} is damaged: its sha256 is not the one in {MANIFEST}", folder)


def read_manifest(folder: Path) -> dict[str, ManifestEntry]:
    """Return the entries of a manifest that must list every file of the folder."""
    names = list_names(folder)
    with open_member(folder, MANIFEST) as file:
        entries = parse_entries(parse_json(file.read(), folder / MANIFEST).get("files"), folder)
    for name in names:
        if name != MANIFEST and name not in entries:
            raise QkvError(f"{name} is not in {MANIFEST}", folder)
    return entries


def make_entries(files: Mapping[str, bytes]) -> dict[str, dict[str, Any]]:
    """Return bytes and sha256 of each file, as a manifest lists them."""
    return {name: {"bytes": len(data), "sha256": sha256(data).hexdigest()} for name, data in sorted(files.items())}


def parse_entries(listed: Any, folder: Path) -> dict[str, ManifestEntry]:
    """Return the entries that a manifest lists; raise if one is not complete."""
    if not isinstance(listed, dict):
        raise QkvError(f"{MANIFEST} lists no files", folder)
    entries = {}
    for name, entry in listed.items():
        if not _is_plain(name):
            raise QkvError(f"{MANIFEST} lists {name!r}, which is not a plain file name", folder)
        match entry:
            case {"bytes": int(size), "sha256": str(digest)}:
                entries[name] = ManifestEntry(size, digest)
            case _:
                raise QkvError(f"{MANIFEST} does not give bytes and sha256 of {name}", folder)
    return entries


def _is_plain(name: str) -> bool:
    return name not in ("", ".", "..", MANIFEST) and not set(name) & set("/\\\0")


@contextmanager
def open_member(folder: Path, name: str) -> Iterator[BufferedReader]:
    """Open a file of a folder for reading; a link, a device or a folder raises."""
    path = folder / name
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise QkvError(f"{name} is not a regular file", folder)
        with path.open("rb") as file:
            yield file
    except FileNotFoundError:
        raise QkvError(f"{name} is missing", folder) from None
    except OSError as error:
        raise QkvError(f"{name} cannot be read ({error.strerror})", folder) from error


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def _already_saved(folder: Path, manifest: bytes) -> bool:
    """Return whether the folder holds exactly these files; raise if it holds other valid ones."""
    if not os.path.lexists(folder):
        return False
    if not folder.is_dir():
        raise QkvError(f"{folder.name} is a file, but a folder is to be saved", folder.parent)
    if not is_valid_folder(folder):
        return False
    if (folder / MANIFEST).read_bytes() == manifest:
        return True
    raise QkvError(f"{folder.name} is there already, with other contents", folder.parent)
