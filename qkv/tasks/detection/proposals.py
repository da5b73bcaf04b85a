"""External proposals: selective search of each picture, kept in the cache folder by the hash of its pixels."""

import io
import os
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile

import numpy as np
import torch
from jaxtyping import Float32, UInt8
from numpy import ndarray
from torch import Tensor

from qkv.errors import QkvError
from qkv.inference.progress import track
from qkv.models.regions import selective_search
from qkv.storage import cache_dir, read_file, write_atomic

VERSION = 2
"""Raise it when selective search changes: cached proposals of another version are not used."""
MIN_PARALLEL = 32
"""Fewest pictures for which other processes are started."""
MAX_FILE_BYTES = 2**22

SMALL = 160
"""Pictures up to this longer side have small objects, which need a finer segmentation."""
FINE = {"scales": (50.0, 150.0), "min_size": 5}

Pixels = UInt8[ndarray, "height width 3"]


class ExternalProposals(NamedTuple):
    """Proposals of a picture, and the seconds that they took when they were computed."""

    boxes: Float32[Tensor, "proposals 4"]
    seconds: float


def propose(picture: UInt8[Tensor, "3 height width"]) -> ExternalProposals:
    """Return the proposals of a picture, from the cache or by selective search."""
    pixels = _pixels(picture)
    path = _path(pixels)
    found = _load(path)
    if found is None:
        _search_and_keep(pixels, path)
        found = _load(path)
    if found is None:
        raise QkvError(f"{path.name} was written but cannot be read", path.parent)
    return found


def prepare_proposals(pictures: Iterable[UInt8[Tensor, "3 height width"]]) -> None:
    """Compute the proposals of all pictures that are not in the cache, with one process per core."""
    missing = [pixels for picture in pictures if not _path(pixels := _pixels(picture)).exists()]
    jobs = [(pixels, _path(pixels)) for pixels in missing]
    for _ in track(_Results(jobs)):
        pass


class _Results:
    """The jobs as they finish, with their number, so that progress can be shown."""

    def __init__(self, jobs: list[tuple[Pixels, Path]]):
        self.jobs = jobs

    def __len__(self) -> int:
        return len(self.jobs)

    def __iter__(self) -> Iterator[None]:
        if len(self.jobs) < MIN_PARALLEL:
            yield from map(_run, self.jobs)
            return
        workers = len(os.sched_getaffinity(0))
        # a spawned process would import the user's script again; these use numpy alone, which survives a fork
        with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
            yield from pool.map(_run, self.jobs, chunksize=8)


def _run(job: tuple[Pixels, Path]) -> None:
    _search_and_keep(*job)


def _search_and_keep(pixels: Pixels, path: Path) -> None:
    started = time.perf_counter()
    boxes = selective_search(pixels, **(FINE if max(pixels.shape[:2]) <= SMALL else {}))  # type: ignore[arg-type]
    data = io.BytesIO()
    np.savez_compressed(data, boxes=boxes, seconds=np.float64(time.perf_counter() - started))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, data.getvalue())


def _load(path: Path) -> ExternalProposals | None:
    """Return cached proposals; None if there are none, or if the file is damaged."""
    if not path.exists():
        return None
    try:
        with np.load(io.BytesIO(read_file(path, MAX_FILE_BYTES)), allow_pickle=False) as found:
            return ExternalProposals(torch.from_numpy(found["boxes"]).reshape(-1, 4), float(found["seconds"]))
    except (OSError, ValueError, KeyError, EOFError, TypeError, RuntimeError, QkvError, BadZipFile):
        path.unlink(missing_ok=True)
        return None


def _pixels(picture: Tensor) -> Pixels:
    return np.ascontiguousarray(picture.movedim(0, 2).numpy())


def _path(pixels: Pixels) -> Path:
    digest = sha256(f"{VERSION} {pixels.shape}".encode() + pixels.tobytes()).hexdigest()
    return cache_dir() / "proposals" / digest[:2] / f"{digest[2:]}.npz"
