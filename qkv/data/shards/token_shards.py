"""A folder of token shards, read as one long row of tokens and as held-out documents.

Shards are a matter of storage: a document that was cut by the end of a shard goes on in the next one, and a row of
tokens may begin in one shard and end in another. Nothing is read whole: `read` fetches the bytes that it returns, and
verifies each MiB when it first reads from it.
"""

import json
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from hashlib import sha256
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from qkv.data.shards.shard_file import CHUNK_BYTES, ShardFile
from qkv.data.shards.shard_folder import HeldOutEntry, read_manifest, read_tokenizer, require_files
from qkv.errors import QkvError
from qkv.storage import open_file

MAX_OPEN = 256
"""Shards that are open at the same time."""


class TokenShards:
    """The tokens of a folder of shards; the sizes of the files are checked at once, contents when they are read."""

    def __init__(self, folder: Path | str):
        self.folder = Path(folder)
        self.manifest, self.digest = read_manifest(self.folder)
        """`digest` is the sha256 of the manifest, and so identifies all that is in the folder."""
        require_files(self.folder, self.manifest)
        self.tokenizer = read_tokenizer(self.folder, self.manifest)
        self._ends = list(accumulate(entry.tokens for entry in self.manifest.train))
        self._open: OrderedDict[int, ShardFile] = OrderedDict()
        self._verified: set[str] = set()

    def __len__(self) -> int:
        return self._ends[-1]

    def read(self, first: int, count: int) -> Int64[Tensor, " count"]:
        """Return the tokens [first, first + count) of all shards, one after the other."""
        if not (first >= 0 and count >= 0 and first + count <= len(self)):
            raise ValueError(f"tokens must be 0 to {len(self):,}, got {first:,} to {first + count:,}")
        parts = []
        number = bisect_right(self._ends, first)
        while count:
            start = first - (self._ends[number] - self.manifest.train[number].tokens)
            taken = min(count, self._ends[number] - first)
            parts.append(self._shard(number).read(start, taken))
            first, count, number = first + taken, count - taken, number + 1
        return torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64))

    def documents(self, split: str) -> Iterator[str]:
        """Yield the documents of a split; those of "train" are decoded from their tokens."""
        if split == "train":
            yield from self._decode()
            return
        entries: list[HeldOutEntry] = getattr(self.manifest, split)
        for entry in entries:
            path = self.folder / entry.file
            if entry.file not in self._verified:
                self._verify(path, entry)
                self._verified.add(entry.file)
            with open_file(path) as file:
                for line in file:
                    yield str(json.loads(line)["text"])

    def _shard(self, number: int) -> ShardFile:
        if number not in self._open:
            own = self.manifest
            self._open[number] = ShardFile(self.folder, own.train[number], own.token_bytes, own.tokenizer)
            if len(self._open) > MAX_OPEN:
                self._open.popitem(last=False)[1].close()
        self._open.move_to_end(number)
        return self._open[number]

    def _verify(self, path: Path, entry: HeldOutEntry) -> None:
        digest = sha256()
        with open_file(path) as file:
            while block := file.read(CHUNK_BYTES):
                digest.update(block)
        if digest.hexdigest() != entry.sha256:
            raise QkvError(f"{entry.file} is damaged: its sha256 is not the one in shards.json", self.folder)

    def _decode(self) -> Iterator[str]:
        own = self.tokenizer
        ids: list[int] = []
        for first in range(0, len(self), CHUNK_BYTES):
            for token in self.read(first, min(CHUNK_BYTES, len(self) - first)).tolist():
                if token == own.start and ids:
                    yield own.decode(ids)
                    ids = []
                ids.append(token)
        yield own.decode(ids)
