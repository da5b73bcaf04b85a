"""The files of a run folder, verified against its manifest.

A run has a manifest from its creation on; model.safetensors is added when training ends. Runs of format 1 have none and
are read as they are. In a run of format 2 a missing manifest is an error.
"""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from qkv.errors import QkvError
from qkv.storage import MANIFEST, is_sealed, load_json, parse_json, read_all_sealed, read_file, read_sealed
from qkv.storage.json import MAX_BYTES
from qkv.train import Run
from qkv.train.resume_check import changed_settings

REQUIRED = ("config.json", "vocabulary.json")
"""Files without which no run can be loaded."""


def read_run_file(run: Run, name: str) -> bytes:
    """Return one file of a run, verified."""
    try:
        return read_sealed(run.folder, name)
    except QkvError as error:
        raise _explain(error, run) from error


def read_run_files(run: Run) -> dict[str, bytes]:
    """Return every sealed file of a finished run, verified; of a run of format 1, what is there."""
    require_seal(run)
    if not is_sealed(run.folder):
        names = (*REQUIRED, run.weights.name) if run.weights.exists() else REQUIRED
        return {name: read_sealed(run.folder, name) for name in names}
    try:
        files = read_all_sealed(run.folder)
    except QkvError as error:
        raise _explain(error, run) from error
    for name in REQUIRED:
        if name not in files:
            raise QkvError(f"{name} is not in {MANIFEST}", run.folder)
    return files


def require_seal(run: Run) -> None:
    """Raise if the manifest is missing, unless the run is of format 1."""
    if not is_sealed(run.folder) and _format(run.folder / "config.json") > 1:
        raise QkvError(
            f"{MANIFEST} is missing, so the run cannot be verified; train with --resume, which compares the run with "
            "its last checkpoint and writes a new one",
            run.folder,
        )


def require_same_vocabulary(run: Run, vocabulary: dict[str, Any]) -> None:
    """Raise if vocabulary.json is not that of the training data; with a manifest it is verified without the data."""
    if is_sealed(run.folder) or _format(run.folder / "config.json") < 2:
        return
    path = run.folder / "vocabulary.json"
    if parse_json(read_sealed(run.folder, path.name), path) != json.loads(json.dumps(vocabulary)):
        raise QkvError("vocabulary.json is not the vocabulary of the training data", run.folder)


def _format(path: Path) -> int:
    """Return the format number of a JSON file; 0 if it cannot be read, which is reported when it is parsed."""
    with suppress(QkvError, OSError):
        record = load_json(read_file(path, MAX_BYTES), path)
        if type(record.get("format")) is int:
            return int(record["format"])
    return 0


def _explain(error: QkvError, run: Run) -> QkvError:
    """Return the error of a changed config.json with the setting that differs from the last checkpoint, if one does."""
    with suppress(QkvError, OSError):
        for name, (before, now) in changed_settings(run).items():
            what = f"config.json has been changed: it has {name}={now}, but the run was started with {name}={before}"
            return QkvError(what, run.folder)
    return error
