import errno
import json
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from qkv.data import Tokenizer
from qkv.data.corpora.corpus_files import FileRange
from qkv.data.shards import piece_tokens
from qkv.data.shards.piece_tokens import PieceOptions, read_records, split_of, tokenize_piece
from qkv.data.shards.pieces import Piece
from qkv.errors import QkvError
from tests.data.shards.corpora import DOCUMENTS, flat


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(DOCUMENTS, "characters", 40)


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch):
    monkeypatch.setattr(piece_tokens, "BATCH_CHARACTERS", 50)
    monkeypatch.setattr(os, "fsync", lambda _: None)  # hundreds of small files


def prepare(folder, shard_tokens=97, held_out=0.1, split=None):
    """Return a piece of all documents, and its options."""
    (folder / "out" / "records").mkdir(parents=True)
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS))
    piece = Piece(7, split, (FileRange(folder / "a.jsonl"),))
    return piece, PieceOptions(folder / "out", "text", held_out, shard_tokens)


def train_tokens(folder):
    names = [record.files["train"][:2] for record in read_records(folder, 7) if "train" in record.files]
    return [np.fromfile(folder / name, "<u2", count) for name, count in names]


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_piece_becomes_full_shards_and_a_last_one(tmp_path, tokenizer):
    piece, options = prepare(tmp_path)
    tokenize_piece(piece, options, tokenizer)
    shards = train_tokens(options.folder)
    train = [text for text in DOCUMENTS if split_of(text, 0.1) == "train"]
    assert np.concatenate(shards).tolist() == flat(tokenizer, train)
    assert {len(shard) for shard in shards[:-1]} == {97}
    assert 0 < len(shards[-1]) <= 97
    records = read_records(options.folder, 7)
    assert [record.last for record in records] == [False] * (len(records) - 1) + [True]
    assert sum(record.files["train"][2] for record in records) == len(train)
    assert records[-1].documents == len(DOCUMENTS)


def test_held_out_documents_are_kept_as_text(tmp_path, tokenizer):
    piece, options = prepare(tmp_path)
    tokenize_piece(piece, options, tokenizer)
    for split in ("valid", "test"):
        files = sorted(options.folder.glob(f"{split}-*.jsonl"))
        texts = [json.loads(line)["text"] for file in files for line in file.read_text().splitlines()]
        assert texts == [text for text in DOCUMENTS if split_of(text, 0.1) == split]
        assert len(texts) > 2


def test_a_corpus_with_splits_holds_nothing_out(tmp_path, tokenizer):
    piece, options = prepare(tmp_path, split="train")
    tokenize_piece(piece, options, tokenizer)
    assert np.concatenate(train_tokens(options.folder)).tolist() == flat(tokenizer, DOCUMENTS)
    assert list(options.folder.glob("*.jsonl")) == []


@pytest.mark.parametrize("shard_tokens", [19, 97, 1000])
def test_a_piece_that_was_stopped_goes_on_where_it_was(tmp_path, tokenizer, shard_tokens):
    """Stopped at every batch in turn, also inside a document; finished shards are not written again."""
    (tmp_path / "whole").mkdir()
    piece, options = prepare(tmp_path / "whole", shard_tokens)
    tokenize_piece(piece, options, tokenizer)
    (tmp_path / "parts").mkdir()
    piece, parts = prepare(tmp_path / "parts", shard_tokens)
    for stop in range(1, 40):
        times = {path: path.stat().st_mtime_ns for path in parts.folder.glob("*.tokens")}
        calls = iter(range(stop * 2))

        def may_stop(calls=calls):
            if next(calls, None) is None:
                raise KeyboardInterrupt

        with suppress(KeyboardInterrupt):
            tokenize_piece(piece, parts, tokenizer, may_stop)
        assert {path: path.stat().st_mtime_ns for path in times} == times
    assert contents(parts.folder) == contents(options.folder)


def test_a_token_that_starts_and_ends_comes_once(tmp_path, tokenizer):
    text = json.dumps(tokenizer.to_record()).replace("<start>", "<|endoftext|>").replace("<end>", "<gone>")
    shared = Tokenizer.from_record(json.loads(text))
    piece, options = prepare(tmp_path, 10_000, split="train")
    tokenize_piece(piece, options, shared)
    expected = [number for text in DOCUMENTS for number in (1, *tokenizer.encode(text))]
    assert train_tokens(options.folder)[0].tolist() == expected


def test_the_split_is_a_function_of_the_text():
    """The 8 bytes of blake2b("abc") are d8bb14d833d59559: 0.8466 as a fraction."""
    assert split_of("abc", 0.85) == "valid"
    assert split_of("abc", 0.84) == "test"
    assert split_of("abc", 0.43) == "test"
    assert split_of("abc", 0.42) == "train"
    counts = [[split_of(f"document {n}", 0.05) for n in range(4000)].count(split) for split in ("valid", "test")]
    assert all(abs(count - 200) < 60 for count in counts)


def test_parts_of_a_long_document_are_in_one_split(tmp_path, tokenizer):
    piece, options = prepare(tmp_path, 10**6)
    Path(piece.parts[0].path).write_text(json.dumps({"text": "abc " * 40_000}) + "\n")
    tokenize_piece(piece, options, tokenizer)
    (record,) = read_records(options.folder, 7)
    assert record.documents == 3
    assert [values[2] for values in record.files.values()] == [3]


def test_a_full_disk_leaves_no_half_file(tmp_path, tokenizer, monkeypatch):
    def fail(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    piece, options = prepare(tmp_path)
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(QkvError, match=r"cannot save .*-000007-000\..* \(No space left on device\): .* are free"):
        tokenize_piece(piece, options, tokenizer)
    assert [path for path in contents(options.folder) if "tmp" in path.name] == []
    assert read_records(options.folder, 7) == []


def test_bad_input_a_damaged_record(tmp_path, tokenizer):
    piece, options = prepare(tmp_path)
    (options.folder / "records" / "000007-000.json").write_text('{"format": 2, "x": 3}')
    with pytest.raises(QkvError, match=r"000007-000\.json is damaged; remove it to tokenize its shard again"):
        tokenize_piece(piece, options, tokenizer)
