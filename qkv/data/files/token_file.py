"""A corpus as one flat file of token ids that can be read while it is being written.

    start a b c end start d e end ...          2 bytes per id, 4 for vocabularies above 65,536

A thread tokenizes the documents block by block, a few blocks ahead of training. A complete block is added to the index
file with its sha256, and only indexed blocks are read. Tokenizing resumes after a killed process. One process writes:
it holds a lock, and the others wait for the index to grow. The tokens are never held in memory.

Every process compares each block with its sha256 once, before it reads from it. If a block does not match, all tokens
are written again, with a warning.
"""

import fcntl
import os
import shutil
import struct
import threading
import time
import warnings
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from qkv.data.tokenizer import Tokenizer
from qkv.errors import QkvError, QkvWarning

FIRST_BLOCK, LARGEST_BLOCK = 2**19, 2**22
"""Characters per block: small at first, so that training starts early."""
BLOCKS_AHEAD = 4
"""Blocks tokenized ahead of the last requested one."""
POLL_SECONDS = 0.02
"""Interval between reads of the index while waiting."""
REBUILD_SECONDS = 60.0
"""Longest wait for another process that holds the lock to replace damaged tokens."""

_ENTRY = struct.Struct("<QQQ32s")
"""Index entry of a block: end, documents up to its end, whether it is the last, sha256."""
_RANGE = struct.Struct("<QQQQ")


class TokenBlock(NamedTuple):
    """Token range [first, end) of a block, the documents up to its end, and the checksum of all that."""

    first: int
    end: int
    documents: int
    last: int
    sha256: bytes


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
        self._verified = 0
        self._data: int | None = None

    def blocks(self, wanted: int) -> Sequence[TokenBlock]:
        """Return the written blocks; wait until there are `wanted`, or fewer if the corpus has no more.

        The first `wanted` are verified.
        """
        self._wait_for(wanted)
        while self._verified < min(wanted, len(self._blocks)):
            if self._is_valid(self._blocks[self._verified]):
                self._verified += 1
            else:
                self._replace_damaged()
                self._wait_for(wanted)
        return self._blocks

    def read(self, first: int, count: int) -> Int64[Tensor, " count"]:
        """Return the tokens [first, first + count)."""
        ids = array(self._typecode)
        end, size = first + count, ids.itemsize
        while not self._verified or self._blocks[self._verified - 1].end < end:
            before = self._verified
            self.blocks(before + 1)
            if self._verified == before:  # the corpus has no more
                break
        data = self._read_bytes(first * size, count * size)
        if len(data) < count * size:
            raise QkvError(f"token {end:,} is missing; remove the folder to rebuild it", self.folder)
        ids.frombytes(data)
        return torch.tensor(ids, dtype=torch.int64)

    def _wait_for(self, wanted: int) -> None:
        if not self._complete and self._wanted < wanted:
            self._wanted = wanted
            self._request()
        while not self._complete and len(self._blocks) < wanted:
            error = self._error  # read first: blocks written before the error are still returned
            self._request()
            if error is not None and len(self._blocks) < wanted:
                raise error
            time.sleep(POLL_SECONDS)

    def _read_bytes(self, start: int, count: int) -> bytes:
        if self._data is None:
            self._data = os.open(self.folder / "tokens", os.O_RDONLY)
        return os.pread(self._data, count, start)

    def _is_valid(self, block: TokenBlock) -> bool:
        """Return whether the tokens of a block are those that were written."""
        size, path = array(self._typecode).itemsize, self.folder / "tokens"
        if not path.is_file() or not block.first <= block.end <= _file_size(path) // size:
            return False
        data = self._read_bytes(block.first * size, (block.end - block.first) * size)
        return self._digest(block.first, block.end, block.documents, block.last, data) == block.sha256

    def _digest(self, first: int, end: int, documents: int, last: int, data: bytes) -> bytes:
        """Return the sha256 of a block; the name of the folder is in it, so that no other corpus can stand in."""
        return sha256(self.folder.name.encode() + _RANGE.pack(first, end, documents, last) + data).digest()

    def _replace_damaged(self) -> None:
        """Write all tokens again, or wait until the process that holds the lock has done so."""
        block = self._blocks[self._verified]
        if self._writer is not None and self._process == os.getpid() and not self._writer.is_alive():
            self._writer = None
        end = time.monotonic() + REBUILD_SECONDS
        while time.monotonic() < end and (self._writer is None or self._process != os.getpid()):
            self._forget()
            self._start_writer_if_unlocked()
            self._read_index()
            if self._writer is not None or block not in self._blocks or self._is_valid(block):
                return
            time.sleep(POLL_SECONDS)
        raise QkvError("the cached tokens are damaged, and a process writes more; end it first", self.folder)

    def _forget(self) -> None:
        """Drop what is known of the files."""
        self._blocks, self._complete, self._verified = [], False, 0
        if self._data is not None:
            os.close(self._data)
            self._data = None

    def _remove_damaged(self) -> None:
        """Verify all blocks; if one is damaged, remove all files with a warning. The lock is held."""
        names = ("index", "tokens", "wanted")
        paths = [self.folder / name for name in names]
        self._forget()
        self._read_index()
        if all(map(self._is_valid, self._blocks)) and not any(path.is_dir() for path in paths):
            self._verified = len(self._blocks)
            return
        self._forget()
        message = f"the cached tokens in {self.folder} are damaged or of another version; tokenizing again"
        warnings.warn(message, QkvWarning, stacklevel=2)
        for path in paths:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

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
        entries = path.read_bytes() if path.is_file() else b""
        first, blocks = 0, []
        for entry in _ENTRY.iter_unpack(entries[: len(entries) // _ENTRY.size * _ENTRY.size]):
            blocks.append(TokenBlock(first, *entry))
            first = blocks[-1].end
        self._complete = bool(blocks and blocks[-1].last)
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
        try:
            self._remove_damaged()
        except BaseException:
            os.close(lock)
            raise
        found = self._blocks
        self._writer = threading.Thread(target=self._run_writer, args=(lock, found), daemon=True, name="tokenize")
        self._writer.start()

    def _run_writer(self, lock: int, found: list[TokenBlock]) -> None:
        try:
            if not found or not found[-1].last:
                self._resume(found)
        except Exception as error:  # noqa: BLE001 - raised again in `blocks`
            self._error = error
        finally:
            os.close(lock)

    def _resume(self, found: list[TokenBlock]) -> None:
        """Tokenize from the end of the last indexed block."""
        begin, end, seen = len(found), *((found[-1].end, found[-1].documents) if found else (0, 0))
        size = array(self._typecode).itemsize
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
                first, end, seen = end, end + len(ids), seen + len(texts)
                digest = self._digest(first, end, seen, last, ids.tobytes())
                index.write(_ENTRY.pack(end, seen, last, digest))
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
