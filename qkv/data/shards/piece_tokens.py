"""Tokenizing one piece of a corpus into shards.

A shard ends after its number of tokens, even inside a document, or with its piece. Its files get their names when they
are complete, and its record is written after them. A process that is killed leaves records of the shards it had
finished: the next one skips the documents that these records count, and the tokens of a document that was cut.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from hashlib import blake2b, sha256
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.data.corpora.text import read_range, split_document
from qkv.data.shards.pieces import Piece
from qkv.data.shards.shard_file import ShardEntry, ShardWriter, token_bytes
from qkv.data.shards.shard_folder import HeldOutEntry
from qkv.data.tokenizer import Tokenizer
from qkv.errors import QkvError
from qkv.storage import read_json, write_json
from qkv.storage.atomic import save_errors, sync_folder

RECORDS = "records"
BATCH_CHARACTERS = 2**18
"""Characters that are tokenized in one call."""


@dataclass(frozen=True)
class ShardRecord:
    """A finished shard: its files, and where its piece goes on."""

    last: bool
    """Whether it ends its piece."""
    documents: int = 0
    """Documents of the piece that are complete."""
    cut: int = 0
    """Tokens of the next document that are written."""
    files: dict[str, list[Any]] = field(default_factory=dict)
    """Split -> values of its `ShardEntry` or `HeldOutEntry`."""


@dataclass(frozen=True)
class PieceOptions:
    """What is done with each piece."""

    folder: Path
    column: str
    held_out: float
    shard_tokens: int


def split_of(document: str, held_out: float) -> str:
    """Return the split of a document: the first 8 bytes of its blake2b, as a number in [0, 1), against `held_out`."""
    share = int.from_bytes(blake2b(document.encode(), digest_size=8).digest(), "big") / 2**64
    return "valid" if share < held_out else "test" if share < 2 * held_out else "train"


def read_records(folder: Path, piece: int) -> list[ShardRecord]:
    """Return the records of the finished shards of a piece, in order."""
    records: list[ShardRecord] = []
    while (path := _record_path(folder, piece, len(records))).exists():
        try:
            records.append(ShardRecord(**read_json(path)))
        except TypeError:
            raise QkvError(f"{path.name} is damaged; remove it to tokenize its shard again", path.parent) from None
    return records


def tokenize_piece(
    piece: Piece, options: PieceOptions, tokenizer: Tokenizer, may_stop: Callable[[], None] = lambda: None
) -> None:
    """Write the shards of a piece that are not there yet; `may_stop` is called between batches."""
    records = read_records(options.folder, piece.number)
    before = records[-1] if records else ShardRecord(last=False)
    if before.last:
        return
    files = _ShardFiles(piece.number, len(records), options.folder, tokenizer)
    documents, cut = before.documents, before.cut
    try:
        for split, text, tokens in _tokenized(piece, options, tokenizer, documents):
            may_stop()
            if split != "train":
                files.hold_out(split, text)
            ids = tokens[cut:]
            while len(taken := ids[: options.shard_tokens - files.tokens]) < len(ids):
                files.append(taken, begins=not cut)
                cut, ids = cut + len(taken), ids[len(taken) :]
                files = files.commit(documents, cut)
            files.append(ids, begins=not cut)
            documents, cut = documents + 1, 0
        files.commit(documents, 0, last=True)
    finally:
        files.discard()


class _ShardFiles:
    """The files of a shard that is being written."""

    def __init__(self, piece: int, number: int, folder: Path, tokenizer: Tokenizer):
        self.piece, self.number, self.folder, self.tokenizer = piece, number, folder, tokenizer
        self.tokens = self.begun = 0
        self._writer: ShardWriter | None = None
        self._held_out: dict[str, _HeldOutWriter] = {}

    def append(self, ids: NDArray[np.integer], *, begins: bool) -> None:
        """Add tokens of a document, of which they may be the first."""
        if not len(ids):
            return
        if self._writer is None:
            width = token_bytes(len(self.tokenizer))
            self._writer = ShardWriter(self._path("train", "tokens"), width, self.tokenizer.digest)
        self._writer.append(ids)
        self.tokens += len(ids)
        self.begun += begins

    def hold_out(self, split: str, text: str) -> None:
        """Add a held-out document."""
        if split not in self._held_out:
            self._held_out[split] = _HeldOutWriter(self._path(split, "jsonl"))
        self._held_out[split].append(text)

    def commit(self, documents: int, cut: int, *, last: bool = False) -> "_ShardFiles":
        """Finish the files, then their record; return the files of the next shard."""
        finished: dict[str, list[Any]] = {split: [*writer.commit()] for split, writer in self._held_out.items()}
        if self._writer is not None:
            digest = self._writer.commit()
            finished["train"] = [*ShardEntry(self._writer.path.name, self.tokens, self.begun, digest)]
        sync_folder(self.folder)
        record = ShardRecord(last, documents, cut, finished)
        write_json(_record_path(self.folder, self.piece, self.number), asdict(record))
        return _ShardFiles(self.piece, self.number + 1, self.folder, self.tokenizer)

    def discard(self) -> None:
        """Remove unfinished files."""
        for writer in (self._writer, *self._held_out.values()):
            if writer is not None:
                writer.discard()

    def _path(self, split: str, suffix: str) -> Path:
        return self.folder / f"{split}-{self.piece:06}-{self.number:03}.{suffix}"


class _HeldOutWriter:
    """A file of held-out documents that grows under a temporary name until `commit`."""

    def __init__(self, path: Path):
        self.path = path
        self.bytes = self.documents = 0
        self._digest = sha256()
        self._temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
        with save_errors(path, 0):
            self._file = self._temporary.open("wb")

    def append(self, text: str) -> None:
        """Add a document."""
        line = json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n"
        with save_errors(self.path, len(line)):
            self._file.write(line)
        self._digest.update(line)
        self.bytes += len(line)
        self.documents += 1

    def commit(self) -> HeldOutEntry:
        """Finish the file, give it its name and return its entry."""
        with save_errors(self.path, self.bytes):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._temporary.replace(self.path)
        return HeldOutEntry(self.path.name, self.bytes, self.documents, self._digest.hexdigest())

    def discard(self) -> None:
        """Remove what was written, unless it is finished."""
        with suppress(OSError):  # on a full disk the rest cannot be written
            self._file.close()
        self._temporary.unlink(missing_ok=True)


def _record_path(folder: Path, piece: int, number: int) -> Path:
    return folder / RECORDS / f"{piece:06}-{number:03}.json"


def _tokenized(
    piece: Piece, options: PieceOptions, tokenizer: Tokenizer, skipped: int
) -> Iterator[tuple[str, str, NDArray[np.integer]]]:
    """Yield (split, text, tokens) of the documents after the skipped ones; held-out documents have no tokens."""
    waiting: list[tuple[str, str]] = []
    size = 0
    for split, text in islice(_documents(piece, options), skipped, None):
        waiting.append((split, text))
        size += len(text)
        if size >= BATCH_CHARACTERS:
            yield from _encode(waiting, tokenizer)
            waiting, size = [], 0
    yield from _encode(waiting, tokenizer)


def _documents(piece: Piece, options: PieceOptions) -> Iterator[tuple[str, str]]:
    """Yield (split, document); the parts of a long document are in the same split."""
    for part in piece.parts:
        for document in read_range(part, options.column):
            split = piece.split or split_of(document, options.held_out)
            for text in split_document(document):
                yield split, text


def _encode(documents: list[tuple[str, str]], tokenizer: Tokenizer) -> Iterator[tuple[str, str, NDArray[np.integer]]]:
    """Tokenize documents, each between start and end; a token that is both is written at the start alone."""
    end = [] if tokenizer.start == tokenizer.end else [tokenizer.end]
    found = iter(tokenizer.encode_batch([text for split, text in documents if split == "train"]))
    for split, text in documents:
        ids = [tokenizer.start, *next(found), *end] if split == "train" else []
        yield split, text, np.array(ids, np.int64)
