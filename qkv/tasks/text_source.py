"""Where the text of the task `text` comes from: a corpus that is tokenized while it is read, or token shards."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path

from qkv.data import Documents, ShardRows, TokenFile, Tokenizer, TokenRows, TokenShards, read_corpus
from qkv.data.corpora.text import COLUMN, corpus_fingerprint, read_documents
from qkv.data.shards.shard_folder import HELD_OUT, is_shard_folder
from qkv.errors import QkvError, unknown_name_error
from qkv.storage import cache_dir
from qkv.train import Settings


@dataclass(frozen=True)
class TextOptions:
    """Text and tokenizer."""

    source: str = "python"
    """python, wikitext, a folder of .txt, .jsonl, .parquet or .arrow files, one file, or a folder of token shards."""
    column: str = COLUMN
    """Column of the texts in .jsonl, .parquet and .arrow files."""
    tokenizer: str = "bytes"
    """bytes, wordpiece or characters, trained on the text; or a tokenizer.json."""
    size: int = 2000
    """Vocabulary size of a trained tokenizer."""
    sample: int = 4_000_000
    """Characters to train the tokenizer on, from the beginning of the text."""
    length: int = 128
    """Tokens per training row."""
    test_file: str | None = None
    """Another text to evaluate on."""
    digest: str = ""
    """Checksum of the tokenizer; set when it is trained, verified afterwards."""
    shards: str = ""
    """Checksum of a folder of token shards; set when it is first read, verified afterwards."""

    def __post_init__(self) -> None:
        for name in ("size", "sample", "length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


class ShardDocuments(Documents):
    """The documents to train on, with the shards that hold their tokens."""

    def __init__(self, shards: TokenShards):
        super().__init__(partial(shards.documents, "train"))
        self.shards = shards

    def require_tokenizer(self, given: Tokenizer | None) -> Tokenizer:
        """Return the tokenizer of the shards; raise if another one is given."""
        own = self.shards.tokenizer
        if given not in (None, own):
            raise QkvError("the shards were written with another tokenizer than the given one", self.shards.folder)
        return own


def read_splits(given: TextOptions) -> tuple[TextOptions, dict[str, Documents]]:
    """Return the options, with the checksum of token shards if the source is such, and the documents of each split."""
    if is_shard_folder(given.source):
        shards = TokenShards(given.source)
        if given.shards not in ("", shards.digest):
            raise QkvError("the token shards have changed since the run was started", f"data.source={given.source}")
        given = replace(given, shards=shards.digest)
        splits: dict[str, Documents] = {name: Documents(partial(shards.documents, name)) for name in HELD_OUT}
        splits["train"] = ShardDocuments(shards)
    else:
        splits = read_corpus(given.source, given.column)
    if given.test_file is not None:
        splits["test"] = read_documents(given.test_file, given.column)
    return given, splits


def make_tokenizer(given: TextOptions, documents: Documents) -> Tokenizer:
    """Return the tokenizer that the options name, trained on the documents if need be; shards have their own."""
    if given.tokenizer not in Tokenizer.KINDS and Path(given.tokenizer).suffix != ".json":
        raise unknown_name_error("tokenizer", given.tokenizer, (*Tokenizer.KINDS, "FILE.json"))
    loaded = None if given.tokenizer in Tokenizer.KINDS else Tokenizer.load(given.tokenizer)
    if isinstance(documents, ShardDocuments):
        return documents.require_tokenizer(loaded)
    if loaded is not None:
        return loaded
    return Tokenizer.train(_first_characters(documents, given.sample), given.tokenizer, given.size)


def make_rows(
    documents: Documents, tokenizer: Tokenizer, given: TextOptions, settings: Settings
) -> TokenRows | ShardRows:
    """Return the rows to train on: of token shards, or of a token file in the cache folder."""
    if isinstance(documents, ShardDocuments):
        return ShardRows(documents.shards, given.length, settings.batch_size, settings.seed)
    fingerprint = corpus_fingerprint(given.source)
    if given.column != COLUMN:
        fingerprint.append(f"column {given.column}")
    key = "\n".join((*fingerprint, tokenizer.digest))
    folder = cache_dir() / "tokens" / blake2b(key.encode(), digest_size=12).hexdigest()
    return TokenRows(TokenFile(folder, documents, tokenizer), given.length, settings.batch_size, settings.seed)


def _first_characters(documents: Documents, count: int) -> Iterator[str]:
    for document in documents:
        yield document[:count]
        count -= len(document)
        if count <= 0:
            return
