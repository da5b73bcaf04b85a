"""Tokenizing a corpus into a folder of shards, by several processes, such that a killed run can be continued."""

import fcntl
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from multiprocessing import get_context, parent_process
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from qkv.data.corpora.text import corpus_fingerprint, read_range
from qkv.data.shards.piece_tokens import RECORDS, PieceOptions, read_records, split_of, tokenize_piece
from qkv.data.shards.pieces import Piece, list_pieces
from qkv.data.shards.shard_file import ShardEntry, token_bytes
from qkv.data.shards.shard_folder import (
    HELD_OUT,
    JOB,
    MANIFEST,
    TOKENIZER,
    HeldOutEntry,
    ShardManifest,
    is_shard_folder,
    read_manifest,
)
from qkv.data.tokenizer import Tokenizer
from qkv.errors import QkvError, unknown_name_error
from qkv.storage import read_json, remove_stale, write_json
from qkv.storage.atomic import save_errors

PIECE_BYTES_PER_TOKEN = 2
"""Bytes of input in a piece for each token of a full shard: less than a token has, so most pieces are one shard."""
Progress = Callable[[int, int], None]
"""Called with the number of finished pieces and of all."""


@dataclass(frozen=True)
class ShardOptions:
    """How a corpus is tokenized."""

    tokenizer: str = "bytes"
    """bytes, wordpiece or characters, trained on the corpus; or a tokenizer.json."""
    size: int = 8000
    """Vocabulary size of a trained tokenizer."""
    sample: int = 4_000_000
    """Characters to train the tokenizer on, from the beginning of the corpus."""
    column: str = "text"
    """Column of the texts in .jsonl, .parquet and .arrow files."""
    held_out: float = 0.005
    """Share of the documents in each of the splits valid and test, if the corpus has no splits of its own."""
    shard_tokens: int = 2**25
    """Most tokens of a shard."""

    def __post_init__(self) -> None:
        for name in ("size", "sample", "shard_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.held_out < 0.5:
            raise ValueError(f"held_out must be more than 0 and below 0.5, got {self.held_out}")


def tokenize_corpus(
    source: str, folder: Path, options: ShardOptions, workers: int = 1, progress: Progress = lambda done, total: None
) -> ShardManifest:
    """Write the token shards of a corpus and return their manifest; what a killed run has finished is kept.

    The files do not depend on `workers`. With 1, no process is started.
    """
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    if folder.absolute().is_relative_to(Path(source).absolute()):
        raise QkvError("the shards must be written outside of the corpus", folder)
    if is_shard_folder(source):
        raise QkvError("the corpus is a folder of token shards already", source)
    pieces = list_pieces(source, PIECE_BYTES_PER_TOKEN * options.shard_tokens)
    job = {"corpus": _digest(corpus_fingerprint(source)), **_settings(options)}
    with _locked(folder):
        if (folder / MANIFEST).exists():
            manifest, _ = read_manifest(folder)
            _require_same(manifest.settings, job, folder)
            return manifest
        tokenizer = _begin(folder, job, options, pieces)
        piece_options = PieceOptions(folder, options.column, options.held_out, options.shard_tokens)
        if workers == 1:
            for done, piece in enumerate(pieces):
                progress(done, len(pieces))
                tokenize_piece(piece, piece_options, tokenizer)
        else:
            _run_workers(pieces, piece_options, workers, progress)
        progress(len(pieces), len(pieces))
        return _finish(folder, job, tokenizer, len(pieces))


def _settings(options: ShardOptions) -> dict[str, Any]:
    """Return what decides the shards; a tokenizer file counts by its contents."""
    if options.tokenizer in Tokenizer.KINDS:
        return asdict(options)
    if Path(options.tokenizer).suffix != ".json":
        raise unknown_name_error("tokenizer", options.tokenizer, (*Tokenizer.KINDS, "FILE.json"))
    digest = Tokenizer.load(options.tokenizer).digest
    return {**asdict(options), "tokenizer": digest, "size": None, "sample": None}


def _digest(lines: list[str]) -> str:
    return sha256("\n".join(lines).encode()).hexdigest()


def _require_same(before: dict[str, Any], job: dict[str, Any], folder: Path) -> None:
    """Raise if a folder was begun with another corpus or other settings."""
    for name, value in job.items():
        if before.get(name) != value:
            if name == "corpus":
                what = "the folder was begun with another corpus, or files of the corpus have changed"
            else:
                what = f"the folder was begun with {name}={before.get(name)}, not {value}"
            raise QkvError(f"{what}; choose another folder, or remove this one", folder)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which is created; another process that holds it is an error."""
    with save_errors(folder, 0):
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise QkvError("another process is tokenizing into this folder", folder) from None
    finally:
        os.close(lock)


def _begin(folder: Path, job: dict[str, Any], options: ShardOptions, pieces: list[Piece]) -> Tokenizer:
    """Prepare a new folder, or check one that was begun; return its tokenizer."""
    if not (folder / JOB).exists() and any(folder.iterdir()):
        raise QkvError("the folder must be empty or new", folder)
    remove_stale(folder)
    if any((folder / RECORDS).glob("*.json")):
        _require_same(read_json(folder / JOB), job, folder)
    else:  # no shard is finished, so other settings may take the place of those it was begun with
        for path in (folder / TOKENIZER, *folder.glob("*-000000-000.*")):
            path.unlink(missing_ok=True)
        write_json(folder / JOB, job)
    (folder / RECORDS).mkdir(exist_ok=True)
    path = folder / TOKENIZER
    if not path.exists():
        if options.tokenizer in Tokenizer.KINDS:
            sample = _sample(pieces, options)
            Tokenizer.train(sample, options.tokenizer, options.size).save(path)
        else:
            Tokenizer.load(options.tokenizer).save(path)
    return Tokenizer.load(path)


def _sample(pieces: list[Piece], options: ShardOptions) -> Iterator[str]:
    """Yield documents to train on from the beginning of the corpus, up to the number of characters."""
    left = options.sample
    for piece in pieces:
        for part in piece.parts:
            for document in read_range(part, options.column):
                if (piece.split or split_of(document, options.held_out)) == "train":
                    yield document[:left]
                    left -= len(document)
                    if left <= 0:
                        return


def _finish(folder: Path, job: dict[str, Any], tokenizer: Tokenizer, pieces: int) -> ShardManifest:
    """Write the manifest of all finished shards and remove what it replaces."""
    listed: dict[str, list[Any]] = {"train": [], "valid": [], "test": []}
    for number in range(pieces):
        for record in read_records(folder, number):
            for split, values in record.files.items():
                listed[split].append(ShardEntry(*values) if split == "train" else HeldOutEntry(*values))
    for split, entries in listed.items():
        if not entries:
            count = sum(entry.documents for found in listed.values() for entry in found)
            remedy = "choose a larger share and another folder" if split in HELD_OUT else "the corpus is too small"
            raise QkvError(
                f"the split {split} has no document: of {count:,}, a share of {job['held_out']} is held out; {remedy}",
                folder,
            )
    manifest = ShardManifest(tokenizer.digest, token_bytes(len(tokenizer)), job, **listed)
    manifest.write(folder)
    shutil.rmtree(folder / RECORDS, ignore_errors=True)
    (folder / JOB).unlink()
    return manifest


def _run_workers(pieces: list[Piece], options: PieceOptions, workers: int, progress: Progress) -> None:
    """Tokenize pieces in worker processes; after an error the others stop at their next batch."""
    context = get_context("spawn")  # a fork of a process with threads may hang
    stop = context.Event()
    waiting, running, done = iter(pieces), set[Future[None]](), 0
    with ProcessPoolExecutor(workers, context, _start_worker, (options, stop)) as pool:
        try:
            for piece in waiting:
                running.add(pool.submit(_work, piece))
                if len(running) > workers:
                    done, running = _collect(running, done)
                    progress(done, len(pieces))
            while running:
                done, running = _collect(running, done)
                progress(done, len(pieces))
        except BrokenProcessPool:
            raise QkvError(
                "a worker process was killed, perhaps for lack of memory; run the command again to continue",
                options.folder,
            ) from None
        except BaseException:
            stop.set()
            raise


def _collect(running: set[Future[None]], done: int) -> tuple[int, set[Future[None]]]:
    """Wait for a piece; return how many are done, and what still runs. An error of a piece is raised."""
    finished, still = wait(running, return_when=FIRST_COMPLETED)
    for one in finished:
        one.result()
    return done + len(finished), still


class _StoppedError(Exception):
    """The end of a piece that is no longer wanted."""


_own: dict[str, Any] = {}
"""Options, tokenizer and stop event of a worker process."""


def _start_worker(options: PieceOptions, stop: Event) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent tells the others to stop
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    _own.update(options=options, stop=stop, tokenizer=Tokenizer.load(options.folder / TOKENIZER))
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when the one that started it is killed."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(piece: Piece) -> None:
    def may_stop() -> None:
        if _own["stop"].is_set():
            raise _StoppedError

    tokenize_piece(piece, _own["options"], _own["tokenizer"], may_stop)
