"""Files that a crash cannot harm, and that are refused when they are damaged.

A folder is written beside its place, its manifest (bytes and sha256 of every file) last, and then renamed: after a
`kill -9` or a power cut it is whole or it is not there. Every JSON file says its format.
"""

import errno
import json
import os
import re
import shutil
import stat
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from hashlib import file_digest, sha256
from importlib.metadata import PackageNotFoundError, distribution
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any

FORMAT = 1
MANIFEST = "MANIFEST.json"

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_TEMPORARY = re.compile(r".+\.tmp-(\d+)(-\d+)?")
_STEP = re.compile(r"step-(\d{8,})")


class QkvError(Exception):
    """What is wrong with a file or a run, where, and the nearest right name, in one sentence."""

    def __init__(self, what: str, where: str | Path = "", nearest: str = ""):
        super().__init__(what, where, nearest)
        self.what = what
        self.where = where
        self.nearest = nearest

    def __str__(self) -> str:
        where = f", in {self.where}" if str(self.where) else ""
        return self.what + where + (f"; did you mean {self.nearest}?" if self.nearest else "")


def write_atomic(path: Path, data: bytes) -> None:
    """Write the file as a whole or not at all; what stood there before stays until the new one is safe on the disk."""
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}-{threading.get_ident()}")
    with _saving(path, len(data)):
        try:
            _write(temporary, data)
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        _sync(path.parent)


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Write the record with its format, atomically."""
    write_atomic(path, _to_json(record))


def read_json(path: Path) -> dict[str, Any]:
    """The record that `write_json` wrote, without its format; a newer format is refused."""
    with open_file(path) as file:
        return _from_json(file.read(), path)


def open_file(path: Path) -> BufferedReader:
    """Open for reading; a missing file is answered with the nearest name in its folder."""
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise _missing("file", path) from None
    except IsADirectoryError:
        raise QkvError(f"{_name(path)} is a folder, but a file is expected", path.parent) from None
    except OSError as error:
        raise QkvError(f"{_name(path)} cannot be read ({error.strerror})", path.parent) from error


def save_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Save these files as a folder that is there as a whole or not at all, and survives a power cut.

    If the very same files are there already, nothing is done; other good files are never replaced; a damaged folder is
    set aside as NAME.damaged-1. Folders above are made.
    """
    for name in files:
        if not _plain(name):
            raise ValueError(f"files must have plain names (no folders, not {MANIFEST}), got {name!r}")
    listed = {name: {"bytes": len(data), "sha256": sha256(data).hexdigest()} for name, data in sorted(files.items())}
    manifest = _to_json({"files": listed})
    temporary = folder.with_name(f"{folder.name}.tmp-{os.getpid()}")
    with _saving(folder, sum(map(len, files.values())) + len(manifest)):
        if _stands(folder, manifest):
            return
        _make_folder(folder.parent)
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir()
            for name, data in (*files.items(), (MANIFEST, manifest)):
                _write(temporary / name, data)
            _sync(temporary)
            _set_aside(folder)
            temporary.rename(folder)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        _sync(folder.parent)


def verify_folder(folder: Path) -> None:
    """Raise a QkvError that names the first file that is not as it was saved."""
    for name, entry in _entries(folder).items():
        with _member(folder, name) as file:
            entry.check(folder, name, file, os.fstat(file.fileno()).st_size)


def read_folder(folder: Path) -> dict[str, bytes]:
    """The contents of every file of a folder, after proof that they are as they were saved."""
    contents = {}
    for name, entry in _entries(folder).items():
        with _member(folder, name) as file:
            data = file.read()
        entry.check(folder, name, BytesIO(data), len(data))  # what is handed out is what was proven
        contents[name] = data
    return contents


def newest_good(parent: Path) -> tuple[Path | None, list[QkvError]]:
    """The highest step-XXXXXXXX folder that verifies, and what was wrong with those above it."""
    if not parent.exists():
        return None, []
    steps = ((int(match[1]), name) for name in _names(parent) if (match := _STEP.fullmatch(name)))
    problems: list[QkvError] = []
    for _, name in sorted(steps, reverse=True):
        try:
            verify_folder(parent / name)
        except QkvError as error:
            problems.append(error)
        else:
            return parent / name, problems
    return None, problems


def remove_stale(parent: Path) -> list[Path]:
    """Remove what killed processes left half written (*.tmp-<process>), and say what it was.

    What a living process is writing stays; what carries our own number is of an earlier process that had it.
    """
    if not parent.exists():
        return []
    removed = []
    for name in _names(parent):
        path, match = parent / name, _TEMPORARY.fullmatch(name)
        if match is None or _writing(int(match[1])):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        removed.append(path)
    return removed


def package_member(package: str, version: str, member: str, sha256: str) -> Path:
    """A data file of an installed package, which is found without importing it and proven by its sha256."""
    install = 'pip install "qkv[data]"'
    try:
        found = distribution(package)
    except PackageNotFoundError:
        raise QkvError(f"the package {package} {version} is not installed: {install}") from None
    if found.version != version:
        raise QkvError(f"{package} {found.version} is installed, but {version} is needed: {install}")
    path = Path(str(found.locate_file(member)))
    with open_file(path) as file:
        digest = file_digest(file, "sha256").hexdigest()
    if digest != sha256:
        raise QkvError(f"{path.name} of {package} {version} has sha256 {digest}, not {sha256}", path.parent)
    return path


@dataclass(frozen=True)
class _Entry:
    """What the manifest says of one file."""

    bytes: int
    sha256: str

    def check(self, folder: Path, name: str, file: BufferedReader | BytesIO, size: int) -> None:
        if size != self.bytes:
            raise QkvError(f"{name} has {size} bytes, but {MANIFEST} says {self.bytes}", folder)
        if file_digest(file, "sha256").hexdigest() != self.sha256:
            raise QkvError(f"{name} is damaged: its sha256 is not the one in {MANIFEST}", folder)


def _entries(folder: Path) -> dict[str, _Entry]:
    names = _names(folder)
    with _member(folder, MANIFEST) as file:
        listed = _from_json(file.read(), folder / MANIFEST).get("files")
    if not isinstance(listed, dict):
        raise QkvError(f"{MANIFEST} lists no files", folder)
    entries = {}
    for name, entry in listed.items():
        if not _plain(name):
            raise QkvError(f"{MANIFEST} lists {name!r}, which is not a plain file name", folder)
        match entry:
            case {"bytes": int(size), "sha256": str(digest)}:
                entries[name] = _Entry(size, digest)
            case _:
                raise QkvError(f"{MANIFEST} does not give bytes and sha256 of {name}", folder)
    for name in names:
        if name != MANIFEST and name not in entries:
            raise QkvError(f"{name} is not in {MANIFEST}", folder)
    return entries


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        raise _missing("folder", folder) from None
    except NotADirectoryError:
        raise QkvError(f"{_name(folder)} is a file, but a folder is expected", folder.parent) from None
    except OSError as error:
        raise QkvError(f"{_name(folder)} cannot be read ({error.strerror})", folder.parent) from error


def _plain(name: str) -> bool:
    return name not in ("", ".", "..", MANIFEST) and not set(name) & set("/\\\0")


@contextmanager
def _member(folder: Path, name: str) -> Iterator[BufferedReader]:
    path = folder / name
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise QkvError(f"{name} is not a plain file", folder)
        with path.open("rb") as file:
            yield file
    except FileNotFoundError:
        raise QkvError(f"{name} is missing", folder) from None
    except OSError as error:
        raise QkvError(f"{name} cannot be read ({error.strerror})", folder) from error


def _to_json(record: Mapping[str, Any]) -> bytes:
    if record.get("format", FORMAT) != FORMAT:
        raise ValueError(f"record has format {record['format']!r}, but this version of qkv writes format {FORMAT}")
    # no newline at the end: the last byte closes the object, so that a truncated file is never JSON
    return json.dumps({"format": FORMAT, **record}, ensure_ascii=False, allow_nan=False, indent=1).encode()


def _from_json(data: bytes, path: Path) -> dict[str, Any]:
    try:
        record = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise QkvError(f"{path.name} is not JSON or is truncated ({error})", path.parent) from None
    if not isinstance(record, dict):
        raise QkvError(f"{path.name} must hold a JSON object, but holds a {type(record).__name__}", path.parent)
    number = record.pop("format", None)
    if type(number) is not int or number < 1:
        raise QkvError(f'{path.name} must have a "format" of 1 to {FORMAT}, but has {number!r}', path.parent)
    if number > FORMAT:
        raise QkvError(f"{path.name} has format {number}, but this version of qkv reads up to {FORMAT}", path.parent)
    return record


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON number")


@contextmanager
def _saving(path: Path, needed: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        room = ""
        if error.errno in _NO_ROOM:
            there = next(parent for parent in path.absolute().parents if parent.exists())
            room = f": {needed:,} bytes are needed, {shutil.disk_usage(there).free:,} are free"
        raise QkvError(f"cannot save {path.name} ({error.strerror}){room}", path.parent) from error


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """A new name is safe only when its folder is on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync(folder.parent)


def _stands(folder: Path, manifest: bytes) -> bool:
    """Whether these very files are there; other good ones are an error, nothing or damaged ones are not."""
    if not os.path.lexists(folder):
        return False
    if not folder.is_dir():
        raise QkvError(f"{folder.name} is a file, but a folder is to be saved", folder.parent)
    try:
        verify_folder(folder)
    except QkvError:
        return False
    if (folder / MANIFEST).read_bytes() == manifest:
        return True
    raise QkvError(f"{folder.name} is there already, with other contents", folder.parent)


def _set_aside(folder: Path) -> None:
    if folder.is_dir() and any(folder.iterdir()):
        number = 1
        while os.path.lexists(aside := folder.with_name(f"{folder.name}.damaged-{number}")):
            number += 1
        folder.rename(aside)


def _writing(process: int) -> bool:
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it lives, and is somebody else's
        pass
    return True


def _missing(kind: str, path: Path) -> QkvError:
    siblings: list[str] = []
    with suppress(OSError):
        siblings = sorted(os.listdir(path.parent))
    nearest = get_close_matches(path.name, siblings, n=1)
    return QkvError(f"there is no {kind} {_name(path)}", path.parent, nearest[0] if nearest else "")


def _name(path: Path) -> str:
    return path.name or str(path)
