"""Atomic file writes: after a `kill -9` or a power failure a file is the old one or the new one, never half of it."""

import errno
import os
import re
import shutil
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import TextIO

from qkv.errors import QkvError, nearest_name

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_TEMPORARY = re.compile(r".+\.tmp-(\d+)(-\d+)?")


def write_atomic(path: Path, data: bytes) -> None:
    """Write the whole file or nothing; the old file stays until the new one is on disk."""
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}-{threading.get_ident()}")
    with save_errors(path, len(data)):
        try:
            write_synced(temporary, data)
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        sync_folder(path.parent)


@contextmanager
def write_stream(path: Path) -> Iterator[TextIO]:
    """Open a UTF-8 text file for writing; it takes its name when the block ends, and is removed if the block fails."""
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}-{threading.get_ident()}")
    with save_errors(path, 0):
        file = temporary.open("w", encoding="utf-8", newline="\n")
    try:
        yield file
        with save_errors(path, file.tell()):
            file.flush()
            os.fsync(file.fileno())
            file.close()
            temporary.replace(path)
            sync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            file.close()
            temporary.unlink()
        raise


def open_file(path: Path) -> BufferedReader:
    """Open a regular file for reading. If it is missing, the error suggests the most similar name in its folder.

    Pipes and devices raise an error, because reading them may block or never end.
    """
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise QkvError(f"{display_name(path)} is not a regular file", path.parent)
        return path.open("rb")
    except FileNotFoundError:
        raise missing_error("file", path) from None
    except IsADirectoryError:
        raise QkvError(f"{display_name(path)} is a folder, but a file is expected", path.parent) from None
    except OSError as error:
        raise QkvError(f"{display_name(path)} cannot be read ({error.strerror})", path.parent) from error


def read_file(path: Path, max_bytes: int) -> bytes:
    """Return the contents of a regular file; raise, without reading it, if it is larger than `max_bytes`."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise QkvError(f"{display_name(path)} has {size:,} bytes, but at most {max_bytes:,} are read", path.parent)
        return file.read(max_bytes)


def list_names(folder: Path) -> list[str]:
    """Return the names of everything in a folder, sorted."""
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        raise missing_error("folder", folder) from None
    except NotADirectoryError:
        raise QkvError(f"{display_name(folder)} is a file, but a folder is expected", folder.parent) from None
    except OSError as error:
        raise QkvError(f"{display_name(folder)} cannot be read ({error.strerror})", folder.parent) from error


def remove_stale(parent: Path) -> list[Path]:
    """Remove the temporary files (*.tmp-<process>) of processes that were killed, and return their paths.

    Files of a running process stay. Files with our own process id were left by an earlier process that had it.
    """
    if not parent.exists():
        return []
    removed = []
    for name in list_names(parent):
        path, match = parent / name, _TEMPORARY.fullmatch(name)
        if match is None or _is_other_running_process(int(match[1])):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        removed.append(path)
    return removed


@contextmanager
def save_errors(path: Path, needed: int) -> Iterator[None]:
    """Turn an OSError of saving `needed` bytes into a QkvError; on a full disk it gives the free space."""
    try:
        yield
    except OSError as error:
        room = ""
        if error.errno in _DISK_FULL:
            existing = next(parent for parent in path.absolute().parents if parent.exists())
            room = f": {needed:,} bytes are needed, {shutil.disk_usage(existing).free:,} are free"
        raise QkvError(f"cannot save {path.name} ({error.strerror}){room}", path.parent) from error


def write_synced(path: Path, data: bytes) -> None:
    """Write a file and wait until it is on disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on disk: only then is a new file safe."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def missing_error(kind: str, path: Path) -> QkvError:
    """Return the error for a missing file or folder, with the most similar name next to it."""
    siblings: list[str] = []
    with suppress(OSError):
        siblings = sorted(os.listdir(path.parent))
    return QkvError(f"there is no {kind} {display_name(path)}", path.parent, nearest_name(path.name, siblings))


def display_name(path: Path) -> str:
    """Return the last part of a path, or all of it if there is no last part."""
    return path.name or str(path)


def _is_other_running_process(process: int) -> bool:
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it runs, under another user
        pass
    return True
