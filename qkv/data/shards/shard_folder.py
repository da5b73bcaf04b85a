"""The manifest of a folder of token shards.

shards.json         the manifest: written last, so a folder that has one is complete
tokenizer.json      the tokenizer of all shards
train-*.tokens      the token shards (`shard_file`)
valid-*.jsonl       held-out documents as text, so that words and bytes are counted as in any text
test-*.jsonl

tokenizing.json     what is being tokenized, and how; and records/, one file per finished shard: both go at the end
"""

from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from qkv.data.shards.shard_file import ShardEntry, require_shard_size
from qkv.data.tokenizer import Tokenizer
from qkv.errors import QkvError
from qkv.records import require_fields
from qkv.storage import parse_json, read_file, write_json
from qkv.storage.json import MAX_BYTES

MANIFEST = "shards.json"
TOKENIZER = "tokenizer.json"
JOB = "tokenizing.json"
HELD_OUT = ("valid", "test")


class HeldOutEntry(NamedTuple):
    """A file of held-out documents as the manifest lists it."""

    file: str
    bytes: int
    documents: int
    sha256: str


@dataclass(frozen=True)
class ShardManifest:
    """What a folder of token shards holds."""

    tokenizer: str
    """Sha256 of the tokenizer."""
    token_bytes: int
    settings: dict[str, Any]
    """How it was made."""
    train: list[ShardEntry]
    valid: list[HeldOutEntry]
    test: list[HeldOutEntry]

    @property
    def tokens(self) -> int:
        """Tokens to train on."""
        return sum(entry.tokens for entry in self.train)

    @property
    def documents(self) -> dict[str, int]:
        """Split -> number of documents."""
        return {name: sum(entry.documents for entry in getattr(self, name)) for name in ("train", *HELD_OUT)}

    def write(self, folder: Path) -> None:
        """Write the manifest, which makes the folder complete."""
        record = asdict(self)
        for name in ("train", *HELD_OUT):
            record[name] = [entry._asdict() for entry in getattr(self, name)]
        write_json(folder / MANIFEST, record)


def is_shard_folder(source: str | Path) -> bool:
    """Return whether this is a folder of token shards, complete or not."""
    path = Path(source)
    return path.is_dir() and ((path / MANIFEST).exists() or (path / JOB).exists() or any(path.glob("*.tokens")))


def read_manifest(folder: Path) -> tuple[ShardManifest, str]:
    """Return the manifest and its sha256; raise if it is damaged, or newer than this version."""
    path = folder / MANIFEST
    if not path.exists():
        if (folder / JOB).exists():
            raise QkvError("tokenizing is not finished; run the same qkv tokenize corpus again to continue it", folder)
        raise QkvError(f"{MANIFEST} is missing, so this is no complete folder of token shards", folder)
    data = read_file(path, MAX_BYTES)
    record = parse_json(data, path)
    try:
        require_fields(record, {"tokenizer": str, "token_bytes": int, "settings": dict})
        if record["token_bytes"] not in (2, 4):
            raise ValueError(f"token_bytes must be 2 or 4, got {record['token_bytes']}")
        train = [ShardEntry(*values) for values in _entries(record, "train", ShardEntry)]
        held_out = [[HeldOutEntry(*values) for values in _entries(record, name, HeldOutEntry)] for name in HELD_OUT]
        if not train:
            raise ValueError("train lists no shard")
    except ValueError as error:
        raise QkvError(f"{MANIFEST} is damaged: {error}", folder) from None
    manifest = ShardManifest(record["tokenizer"], record["token_bytes"], record["settings"], train, *held_out)
    return manifest, sha256(data).hexdigest()


def read_tokenizer(folder: Path, manifest: ShardManifest) -> Tokenizer:
    """Return the tokenizer of a folder; raise if it is not the one of the manifest."""
    tokenizer = Tokenizer.load(folder / TOKENIZER)
    if tokenizer.digest != manifest.tokenizer:
        raise QkvError(f"{TOKENIZER} is not the tokenizer that the shards were written with", folder)
    return tokenizer


def require_files(folder: Path, manifest: ShardManifest) -> None:
    """Raise if a file of the manifest is missing or has another size; contents are verified when they are read."""
    for entry in manifest.train:
        require_shard_size(folder / entry.file, entry, manifest.token_bytes)
    for held_out in (*manifest.valid, *manifest.test):
        path = folder / held_out.file
        size = path.stat().st_size if path.is_file() else None
        if size != held_out.bytes:
            found = "is missing" if size is None else f"has {size:,} bytes, but {MANIFEST} has {held_out.bytes:,}"
            raise QkvError(f"{held_out.file} {found}", folder)


def _entries(record: dict[str, Any], split: str, kind: Any) -> list[list[Any]]:
    """Return the values of each entry of a split, in the order of the fields; raise if one is not complete."""
    listed = record.get(split)
    if not isinstance(listed, list):
        raise ValueError(f"{split} must be a list, got {listed!r:.100}")
    found = []
    for number, entry in enumerate(listed):
        values: list[Any] = [entry.get(name) for name in kind._fields] if isinstance(entry, dict) else []
        if [type(value) for value in values] != [str, int, int, str] or set(values[0]) & set("/\\\0"):
            raise ValueError(f"entry {number} of {split} must have {', '.join(kind._fields)}, got {entry!r:.100}")
        if values[1] < 1 or values[2] < 0:
            raise ValueError(f"{values[0]} must hold at least one {kind._fields[1][:-1]}, but has {values[1]}")
        found.append(values)
    return found
