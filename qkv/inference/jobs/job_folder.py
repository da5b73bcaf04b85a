"""The folder of a batch job: its parts, and which of them are complete or taken.

    job.json            settings, conditions, the input and where its pieces begin
    part-000000.tsv     answers of the first piece, and so on
    summary.json        counts; it is written when all parts are there
    state/000000.json   counts and checksum of a part, written after it
    state/lock          a process that predicts piece k has locked byte k + 1, and byte 0 to start the job

The system releases the locks of a process that dies. So a piece is never lost, and processes need not know each other.
"""

import fcntl
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qkv.errors import QkvError, QkvWarning
from qkv.inference.jobs.input_file import InputFile, LineIndex, index_lines
from qkv.inference.jobs.job_settings import MAX_PARTS, JobSettings
from qkv.inference.jobs.part_file import PartRecord
from qkv.storage import open_file, read_json, remove_stale, write_json
from qkv.storage.atomic import list_names, save_errors

JOB, SUMMARY, STATE = "job.json", "summary.json", "state"
NEW_FOLDER = "give --out another folder for a new job"
_RECORD = re.compile(r"(\d{6})\.json")


class JobFolder:
    """The folder of a job, which several processes may have open."""

    def __init__(self, path: Path, form: str):
        self.path, self.form = path, form
        self.state = path / STATE
        with save_errors(self.state, 0):
            self.state.mkdir(parents=True, exist_ok=True)
            self._lock_file = os.open(self.state / "lock", os.O_RDWR | os.O_CREAT, 0o666)

    def close(self) -> None:
        """Release the locks of this process."""
        os.close(self._lock_file)

    def part(self, piece: int) -> Path:
        """Return the path of the part that answers a piece."""
        return self.path / f"part-{piece:06d}.{self.form}"

    def complete(self) -> set[int]:
        """Return the pieces whose parts are complete."""
        recorded = {int(found[1]) for name in list_names(self.state) if (found := _RECORD.fullmatch(name))}
        parts = set(list_names(self.path))
        return {piece for piece in recorded if self.part(piece).name in parts}

    def is_complete(self, piece: int) -> bool:
        """Return whether the part of a piece is complete."""
        return self._record_path(piece).exists() and self.part(piece).exists()

    def save_record(self, piece: int, record: PartRecord) -> None:
        """Mark a part as complete."""
        write_json(self._record_path(piece), record.to_record())

    def read_record(self, piece: int) -> PartRecord:
        """Return the record of a complete part; raise if the part is not as it was written."""
        path = self._record_path(piece)
        try:
            record = PartRecord(**read_json(path))
        except TypeError:
            raise QkvError(f"{path.name} is not the record of a part; delete it", path.parent) from None
        if not record.matches(self.part(piece)):
            name = self.part(piece).name
            raise QkvError(f"{name} was changed after it was written; delete it and run the command again", self.path)
        return record

    @contextmanager
    def claim(self, piece: int) -> Iterator[bool]:
        """Lock a piece inside the block; False: another process has locked it."""
        try:
            fcntl.lockf(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, piece + 1)
        except (BlockingIOError, PermissionError):  # the two errors of a lock that another process has
            yield False
            return
        try:
            yield True
        finally:
            fcntl.lockf(self._lock_file, fcntl.LOCK_UN, 1, piece + 1)

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Let one process at a time read or write job.json."""
        try:
            fcntl.lockf(self._lock_file, fcntl.LOCK_EX, 1, 0)
        except OSError as error:
            raise QkvError(f"the file system has no file locks ({error.strerror})", self.path) from error
        try:
            yield
        finally:
            fcntl.lockf(self._lock_file, fcntl.LOCK_UN, 1, 0)

    def remove_stale(self) -> None:
        """Remove temporary files of processes that were killed; only when all parts are there."""
        remove_stale(self.path)
        remove_stale(self.state)

    def _record_path(self, piece: int) -> Path:
        return self.state / f"{piece:06d}.json"


def open_job(
    path: Path, source: Path, settings: JobSettings, conditions: Mapping[str, Any] | None = None
) -> tuple[JobFolder, InputFile]:
    """Start a job in a new or empty folder, or continue the one that is there; return the folder and the input.

    Another input, run or option is an error. `conditions` are what the last digits of a probability depend on besides:
    a difference is a `QkvWarning`.
    """
    require_job_or_empty(path)
    with open_file(source):  # before the folder is made
        pass
    folder = JobFolder(path, settings.form)
    try:
        with folder.starting():
            if (path / JOB).exists():
                return folder, _continue(path / JOB, source, settings, conditions or {})
            index = index_lines(source, settings.part_lines)
            _write_job(path / JOB, source, settings, index, conditions or {})
            return folder, InputFile(source, index)
    except BaseException:
        folder.close()
        raise


def require_job_or_empty(path: Path) -> None:
    """Raise if a folder has files and no job, since a job would mix its own with them."""
    if not path.exists():
        return
    names = list_names(path)
    others = [name for name in names if name != STATE and not name.startswith(f"{JOB}.tmp-")]
    if JOB not in names and others:
        raise QkvError(f"the folder has other files, such as {others[0]}, and no {JOB}; {NEW_FOLDER}", path)


def _continue(path: Path, source: Path, settings: JobSettings, conditions: Mapping[str, Any]) -> InputFile:
    """Return the input of the job in a folder; raise if this command would write other answers."""
    record = read_json(path)
    difference = settings.difference(record)
    if difference is not None:
        raise QkvError(f"{difference}; {NEW_FOLDER}", path.parent)
    try:
        index = LineIndex(**record["input"])
        started = dict(record["conditions"])
    except (KeyError, TypeError, ValueError):
        raise QkvError(f"{path.name} is not the record of a job", path.parent) from None
    if not index.is_current(source):
        index = _index_again(index, path, source)
        _write_job(path, source, settings, index, started)
    _warn_of_conditions(started, conditions, path.parent)
    return InputFile(source, index)


def _index_again(index: LineIndex, path: Path, source: Path) -> LineIndex:
    """Return the index of an input that was copied or touched; raise if its contents are not the same."""
    size = source.stat().st_size
    again = index_lines(source, index.part_lines) if size == index.bytes else None
    if again is None or again.sha256 != index.sha256:
        what = f"of {index.bytes:,} bytes, and {source.name} has {size:,}"
        if size == index.bytes:
            what = f"whose contents differ from those of {source.name}"
        raise QkvError(f"the job in this folder was started with an input {what}; {NEW_FOLDER}", path.parent)
    return again


def _write_job(
    path: Path, source: Path, settings: JobSettings, index: LineIndex, conditions: Mapping[str, Any]
) -> None:
    if len(index.offsets) > MAX_PARTS:
        least = -(-index.lines // MAX_PARTS)
        raise QkvError(
            f"--part-lines {settings.part_lines} makes {len(index.offsets):,} parts, but a job has at most "
            f"{MAX_PARTS:,}; give --part-lines {least} or more",
            source,
        )
    record = settings.to_record()
    write_json(path, {**record, "name": source.name, "input": index.to_record(), "conditions": dict(conditions)})


def _warn_of_conditions(started: Mapping[str, Any], now: Mapping[str, Any], folder: Path) -> None:
    changed = [f"{name} ({started[name]}, now {now.get(name)})" for name in started if started[name] != now.get(name)]
    if changed:
        sentence = f"{', '.join(changed)} changed since the job in {folder} was started"
        warnings.warn(
            f"{sentence}: the last digits of probabilities may differ between parts", QkvWarning, stacklevel=4
        )
