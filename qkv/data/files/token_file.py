"""A corpus as one flat file of token ids that can be read while it is being written.

    start a b c end start d e end ...          2 bytes per id, 4 for vocabularies above 65,536

A thread tokenizes the documents block by block, a few blocks ahead of training. A complete block is added to the index
file, and only indexed blocks are read. Tokenizing resumes after a killed process. One process writes (it holds a lock);
the others wait for the index to grow. The tokens are never held in memory.
"""

import fcntl
import os
import struct
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from qkv.data.tokenizer import Tokenizer
from qkv.errors import QkvError

FIRST_BLOCK, LARGEST_BLOCK = 2**19, 2**22
"""Characters per block: small at first, so that training starts early."""
BLOCKS_AHEAD = 4
"""Blocks tokenized ahead of the last requested one."""
POLL_SECONDS = 0.02
"""Interval between reads of the index while waiting."""

_ENTRY = struct.Struct("<QQQ")


class TokenBlock(NamedTuple):
    """Token range [first, end) of a block, and the number of documents up to its end."""

    first: int
    end: int
    documents: int


class TokenFile:
    """Tokens of documents, stored in a folder; tokenizing starts at the first request."""

    def __init__(self, folder: Path, documents: Iterable[str], tokenizer: Tokenizer):
        self.folder, self.tokenizer = folder, tokenizer
        self._documents = documents
        self._typecode = "H" if len(tokenizer) <= 2**16 else "i"
        self._error: Exception | None = None
        self._writer: threading.Thread | None = None
        self._process, self._lock = os.getpid(), -1
        self._wanted = 0
        self._blocks: list[TokenBlock] = []
        self._complete = False
        self._data: int | None = None

    def blocks(self, wanted: int) -> Sequence[TokenBlock]:
        """Return the written blocks; wait until there are `wanted`, or fewer if the corpus has no more."""
        if not self._complete and self._wanted < wanted:
            self._wanted = wanted
            self._request()
        while not self._complete and len(self._blocks) < wanted:
            error = self._error  # read first: blocks written before the error are still returned
            self._request()
            if error is not None and len(self._blocks) < wanted:
                raise error
            time.sleep(POLL_SECONDS)
        return self._blocks

    def read(self, first: int, count: int) -> Int64[Tensor, " count"]:
        """Return the tokens [first, first + count)."""
        if self._data is None:
            self.blocks(1)
            self._data = os.open(self.folder / "tokens", os.O_RDONLY)
        ids = array(self._typecode)
        size = ids.itemsize
        data = os.pread(self._data, count * size, first * size)
        if len(data) < count * size:
            raise QkvError(f"token {first + count:,} is missing; remove the folder to rebuild it", self.folder)
        ids.frombytes(data)
        return torch.tensor(ids, dtype=torch.int64)

    def _request(self) -> None:
        """Read the index; if the corpus is not complete, make sure that a process writes and knows what is wanted.

        The size of the file `wanted` is the number of blocks requested, which all processes share.
        """
        self._read_index()
        if not self._complete:
            self._start_writer_if_unlocked()
            path = self.folder / "wanted"
            if _file_size(path) < self._wanted:
                with path.open("ab") as file:
                    file.truncate(self._wanted)

    def _read_index(self) -> None:
        path = self.folder / "index"
        entries = path.read_bytes() if path.exists() else b""
        first, blocks = 0, []
        for end, documents, last in _ENTRY.iter_unpack(entries[: len(entries) // _ENTRY.size * _ENTRY.size]):
            blocks.append(TokenBlock(first, end, documents))
            first = end
            self._complete = bool(last)
        self._blocks = blocks

    def _start_writer_if_unlocked(self) -> None:
        """Start the writer thread if the lock is free.

        A forked process inherits the lock but not the thread, so it closes its copy first.
        """
        if self._writer is not None:
            if self._process == os.getpid():
                return
            self._writer = None
            with suppress(OSError):
                os.close(self._lock)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise QkvError(f"tokens cannot be written ({error.strerror}); set QKV_CACHE", self.folder) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return
        self._process, self._lock = os.getpid(), lock
        self._writer = threading.Thread(target=self._run_writer, args=(lock,), daemon=True, name="tokenize")
        self._writer.start()

    def _run_writer(self, lock: int) -> None:
        try:
            self._read_index()  # blocks of the previous writer
            if not self._complete:
                self._resume()
        except Exception as error:  # noqa: BLE001 - raised again in `blocks`
            self._error = error
        finally:
            os.close(lock)

    def _resume(self) -> None:
        """Tokenize from the end of the last indexed block."""
        last_block = self._blocks[-1] if self._blocks else TokenBlock(0, 0, 0)
        begin, end, seen = len(self._blocks), last_block.end, last_block.documents
        size = array(self._typecode).itemsize
        written = _file_size(self.folder / "tokens")
        if written < end * size:  # truncate would extend the file with zeros
            raise QkvError(
                f"tokens has {written:,} bytes, but the index gives {end * size:,}; remove the folder to rebuild it",
                self.folder,
            )
        with (self.folder / "tokens").open("ab") as data, (self.folder / "index").open("ab") as index:
            data.truncate(end * size)
            index.truncate(begin * _ENTRY.size)
            for number, (texts, last) in enumerate(
                _document_batches(islice(self._documents, seen, None), begin), begin
            ):
                while number >= _file_size(self.folder / "wanted") + BLOCKS_AHEAD:
                    time.sleep(POLL_SECONDS)
                ids = self._encode(texts, last=last)
                ids.tofile(data)
                _sync(data.fileno(), data.flush)
                end, seen = end + len(ids), seen + len(texts)
                index.write(_ENTRY.pack(end, seen, last))
                _sync(index.fileno(), index.flush)

    def _encode(self, texts: list[str], *, last: bool) -> "array[int]":
        """Concatenate documents; a token that is both start and end is written once between documents and once last."""
        tokenizer = self.tokenizer
        tokens = array(self._typecode)
        for ids in tokenizer.encode_batch(texts):
            tokens.append(tokenizer.start)
            tokens.extend(ids)
            if tokenizer.start != tokenizer.end:
                tokens.append(tokenizer.end)
        if last and tokenizer.start == tokenizer.end:
            tokens.append(tokenizer.end)
        return tokens


def _document_batches(documents: Iterator[str], number: int) -> Iterator[tuple[list[str], bool]]:
    """Yield the documents of each block, starting with block `number`, and whether they are the last."""
    batch: list[str] = []
    size = 0
    for document in documents:
        if size >= min(FIRST_BLOCK << min(number, 10), LARGEST_BLOCK):
            yield batch, False
            batch, size, number = [], 0, number + 1
        batch.append(document)
        size += len(document)
    yield batch, True


def _file_size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _sync(descriptor: int, flush: Callable[[], object]) -> None:
    """Flush to disk: an index entry must never exist without its tokens."""
    flush()
    os.fsync(descriptor)
