"""A corpus as one flat file of token ids, written while it is already being read.

    start a b c end start d e end ...          2 bytes an id, 4 where there are more than 65,536

A thread tokenizes the documents block after block, a little ahead of whoever trains; a block that is written whole is
entered in the index beside it, and only what is entered is read. Tokenizing goes on where a killed process left it. One
process writes (it holds a lock), all others wait for the index to grow. Nothing of it is held in memory.
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
from qkv.storage import QkvError

FIRST_BLOCK, LARGEST_BLOCK = 2**19, 2**22
"""Characters tokenized before the index grows: few at first, so that training starts soon."""
AHEAD = 4
"""Blocks that are written before anybody asks for them."""
PAUSE = 0.02
"""Seconds between two looks at the index."""

_ENTRY = struct.Struct("<QQQ")


class Block(NamedTuple):
    """The first and the last token of a block, which is not in it, and the documents up to there."""

    first: int
    end: int
    documents: int


class TokenFile:
    """The tokens of documents in a folder of their own; tokenizing starts with the first question."""

    def __init__(self, folder: Path, documents: Iterable[str], tokenizer: Tokenizer):
        self.folder, self.tokenizer = folder, tokenizer
        self._documents = documents
        self._code = "H" if len(tokenizer) <= 2**16 else "i"
        self._failed: Exception | None = None
        self._writer: threading.Thread | None = None
        self._process, self._lock = os.getpid(), -1
        self._asked = 0
        self._blocks: list[Block] = []
        self._whole = False
        self._data: int | None = None

    def blocks(self, wanted: int) -> Sequence[Block]:
        """The blocks that are written; waits for `wanted` of them, and gives fewer only if there are no more."""
        if not self._whole and self._asked < wanted:
            self._asked = wanted
            self._ask()
        while not self._whole and len(self._blocks) < wanted:
            failed = self._failed  # before the look: what was written until then is still given
            self._ask()
            if failed is not None and len(self._blocks) < wanted:
                raise failed
            time.sleep(PAUSE)
        return self._blocks

    def read(self, first: int, count: int) -> Int64[Tensor, " count"]:
        """`count` tokens from number `first` on."""
        if self._data is None:
            self.blocks(1)
            self._data = os.open(self.folder / "tokens", os.O_RDONLY)
        numbers = array(self._code)
        size = numbers.itemsize
        held = os.pread(self._data, count * size, first * size)
        if len(held) < count * size:
            raise QkvError(f"token {first + count:,} is not there; remove the folder, it is made anew", self.folder)
        numbers.frombytes(held)
        return torch.tensor(numbers, dtype=torch.int64)

    def _ask(self) -> None:
        """Look what there is; where more may be needed, see that somebody writes it.

        What is wanted is the size of a file, so that processes can tell each other; whoever waits asks again.
        """
        self._look()
        if not self._whole:
            self._write_if_nobody_does()
            path = self.folder / "wanted"
            if _size(path) < self._asked:
                with path.open("ab") as file:
                    file.truncate(self._asked)

    def _look(self) -> None:
        path = self.folder / "index"
        entries = path.read_bytes() if path.exists() else b""
        first, blocks = 0, []
        for end, documents, last in _ENTRY.iter_unpack(entries[: len(entries) // _ENTRY.size * _ENTRY.size]):
            blocks.append(Block(first, end, documents))
            first = end
            self._whole = bool(last)
        self._blocks = blocks

    def _write_if_nobody_does(self) -> None:
        """Whoever gets the lock writes; a forked process has its parent's lock, but not its thread, and gives it up."""
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
        self._writer = threading.Thread(target=self._write, args=(lock,), daemon=True, name="tokenize")
        self._writer.start()

    def _write(self, lock: int) -> None:
        try:
            self._look()  # what was written until the lock was free
            if not self._whole:
                self._go_on()
        except Exception as error:  # noqa: BLE001 - raised again where somebody waits
            self._failed = error
        finally:
            os.close(lock)

    def _go_on(self) -> None:
        done = self._blocks[-1] if self._blocks else Block(0, 0, 0)
        begin, end, seen = len(self._blocks), done.end, done.documents
        size = array(self._code).itemsize
        held = _size(self.folder / "tokens")
        if held < end * size:  # truncate would fill it up with zeros
            raise QkvError(
                f"tokens has {held:,} bytes, but the index says {end * size:,}; remove the folder, it is made anew",
                self.folder,
            )
        with (self.folder / "tokens").open("ab") as data, (self.folder / "index").open("ab") as index:
            data.truncate(end * size)
            index.truncate(begin * _ENTRY.size)
            for number, (texts, last) in enumerate(_batches(islice(self._documents, seen, None), begin), begin):
                while number >= _size(self.folder / "wanted") + AHEAD:
                    time.sleep(PAUSE)
                numbers = self._encode(texts, last=last)
                numbers.tofile(data)
                _sync(data.fileno(), data.flush)
                end, seen = end + len(numbers), seen + len(texts)
                index.write(_ENTRY.pack(end, seen, last))
                _sync(index.fileno(), index.flush)

    def _encode(self, texts: list[str], *, last: bool) -> "array[int]":
        """Where start and end are one token, each stands once between two documents, and one more after the last."""
        one = self.tokenizer
        numbers = array(self._code)
        for ids in one.encode_all(texts):
            numbers.append(one.start)
            numbers.extend(ids)
            if one.start != one.end:
                numbers.append(one.end)
        if last and one.start == one.end:
            numbers.append(one.end)
        return numbers


def _batches(documents: Iterator[str], number: int) -> Iterator[tuple[list[str], bool]]:
    """Documents for each block from `number` on, and whether they are the last."""
    held: list[str] = []
    size = 0
    for document in documents:
        if size >= min(FIRST_BLOCK << min(number, 10), LARGEST_BLOCK):
            yield held, False
            held, size, number = [], 0, number + 1
        held.append(document)
        size += len(document)
    yield held, True


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _sync(descriptor: int, flush: Callable[[], object]) -> None:
    """An entry must never be on the disk without what it promises."""
    flush()
    os.fsync(descriptor)
