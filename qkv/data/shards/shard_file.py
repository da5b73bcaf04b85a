"""One file of token ids, written and read in checked chunks.

    ids                   2 bytes each, little-endian; 4 for vocabularies above 65,536
    sha256 of each chunk  32 bytes per MiB of ids
    end                   magic, number of ids, bytes per id, sha256 of the tokenizer

The checksum of a shard, which the manifest has, is the sha256 of all that follows the ids. So a reader verifies each
chunk when it first reads from it, and never reads a shard as a whole.

Files are read with `pread`. It uses the same page cache as a memory map, but mapped pages count as memory of the
process, and a mapped file that is cut off ends the process by a signal instead of with a sentence.
"""

import os
import struct
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qkv.errors import QkvError
from qkv.storage import open_file
from qkv.storage.atomic import save_errors

CHUNK_BYTES = 2**20
"""Bytes of ids under one checksum."""
MAGIC = b"QKVTOKS1"
_END = struct.Struct("<8sQI32s")


class ShardEntry(NamedTuple):
    """A shard as the manifest lists it."""

    file: str
    tokens: int
    documents: int
    """Documents that begin in it."""
    sha256: str


def token_bytes(vocabulary: int) -> int:
    """Return the bytes per id for a vocabulary of this size."""
    return 2 if vocabulary <= 2**16 else 4


def shard_bytes(tokens: int, width: int) -> int:
    """Return the size of the file of a shard."""
    return tokens * width + 32 * -(-tokens * width // CHUNK_BYTES) + _END.size


class ShardWriter:
    """A shard that grows under a temporary name until `commit`; at most a chunk is in memory."""

    def __init__(self, path: Path, width: int, tokenizer: str):
        self.path, self.width, self.tokenizer = path, width, tokenizer
        self.tokens = 0
        self._temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
        self._pending, self._digests = bytearray(), bytearray()
        with save_errors(path, CHUNK_BYTES):
            self._file = self._temporary.open("wb")

    def append(self, ids: NDArray[np.integer]) -> None:
        """Add ids."""
        self._pending += ids.astype(f"<u{self.width}").tobytes()
        self.tokens += len(ids)
        while len(self._pending) >= CHUNK_BYTES:
            self._write(CHUNK_BYTES)

    def commit(self) -> str:
        """Finish the file, give it its name and return its checksum."""
        if self._pending:
            self._write(len(self._pending))
        end = bytes(self._digests) + _END.pack(MAGIC, self.tokens, self.width, bytes.fromhex(self.tokenizer))
        with save_errors(self.path, len(end)):
            self._file.write(end)
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._temporary.replace(self.path)
        return sha256(end).hexdigest()

    def discard(self) -> None:
        """Remove what was written, unless it is finished."""
        with suppress(OSError):  # on a full disk the rest cannot be written
            self._file.close()
        self._temporary.unlink(missing_ok=True)

    def _write(self, count: int) -> None:
        data = bytes(self._pending[:count])
        del self._pending[:count]
        self._digests += sha256(data).digest()
        with save_errors(self.path, count):
            self._file.write(data)


class ShardFile:
    """A shard that is open for reading."""

    def __init__(self, folder: Path, entry: ShardEntry, width: int, tokenizer: str):
        self.path, self.entry, self.width = folder / entry.file, entry, width
        self._chunks = -(-entry.tokens * width // CHUNK_BYTES)
        with open_file(self.path) as file:
            self._file = os.dup(file.fileno())
        try:
            self._digests = self._read_end(tokenizer)
        except BaseException:
            self.close()
            raise
        self._verified = bytearray(self._chunks)

    def read(self, first: int, count: int) -> NDArray[np.integer]:
        """Return the ids [first, first + count), after their chunks were verified."""
        start, end = first * self.width, (first + count) * self.width
        for chunk in range(start // CHUNK_BYTES, -(-end // CHUNK_BYTES)):
            if not self._verified[chunk]:
                self._verify(chunk)
        return np.frombuffer(self._read_bytes(start, end - start), f"<u{self.width}")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _read_end(self, tokenizer: str) -> bytes:
        """Return the checksums of the chunks, verified."""
        require_shard_size(self.path, self.entry, self.width)
        size = 32 * self._chunks + _END.size
        end = self._read_bytes(self.entry.tokens * self.width, size)
        magic, tokens, width, digest = _END.unpack(end[-_END.size :])
        if magic == MAGIC and digest.hex() != tokenizer:
            raise self._error("was written with another tokenizer than tokenizer.json")
        if (magic, tokens, width) != (MAGIC, self.entry.tokens, self.width):
            raise self._error("is damaged or no shard of tokens: its end is not that of one")
        if sha256(end).hexdigest() != self.entry.sha256:
            raise self._error("is damaged or of another corpus: its checksum is not the one in shards.json")
        return end[: -_END.size]

    def _verify(self, chunk: int) -> None:
        start = chunk * CHUNK_BYTES
        data = self._read_bytes(start, min(CHUNK_BYTES, self.entry.tokens * self.width - start))
        if sha256(data).digest() != self._digests[32 * chunk : 32 * chunk + 32]:
            raise self._error(f"is damaged: bytes {start:,} to {start + len(data):,} do not match their checksum")
        self._verified[chunk] = 1

    def _read_bytes(self, start: int, count: int) -> bytes:
        try:
            data = os.pread(self._file, count, start)
        except OSError as error:
            raise self._error(f"cannot be read ({error.strerror})") from error
        if len(data) < count:
            raise self._error(f"ends at byte {start + len(data):,}, before {start + count:,}")
        return data

    def _error(self, what: str) -> QkvError:
        return QkvError(f"{self.path.name} {what}", self.path.parent)


def require_shard_size(path: Path, entry: ShardEntry, width: int) -> None:
    """Raise if a shard is missing or has another size than its number of ids needs."""
    try:
        size = path.stat().st_size
    except OSError as error:
        what = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
        raise QkvError(f"{path.name} {what}", path.parent) from None
    expected = shard_bytes(entry.tokens, width)
    if size != expected:
        raise QkvError(
            f"{path.name} has {size:,} bytes, but its {entry.tokens:,} tokens need {expected:,}: "
            "it is damaged or was cut off",
            path.parent,
        )
