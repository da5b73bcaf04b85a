import json
import shutil

import pytest

from qkv.data import TokenShards
from qkv.data.shards import token_shards
from qkv.data.shards.piece_tokens import split_of
from qkv.errors import QkvError
from tests.data.shards.corpora import corpus_order, flat, make_shards


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_shards(tmp_path_factory.mktemp("made"))


def expected(split):
    return [text for text in corpus_order() if split_of(text, 0.1) == split]


def test_shards_are_one_row_of_tokens(made):
    """Documents that the end of a shard cuts go on in the next one, as if there were no shards."""
    shards = TokenShards(made)
    tokens = flat(shards.tokenizer, expected("train"))
    assert len(shards.manifest.train) > 8
    assert {entry.tokens for entry in shards.manifest.train} > {97}
    assert len(shards) == len(tokens)
    assert shards.read(0, len(tokens)).tolist() == tokens
    for first, count in ((0, 0), (96, 2), (97, 97), (150, 311), (len(tokens) - 1, 1), (len(tokens), 0)):
        assert shards.read(first, count).tolist() == tokens[first : first + count]


def test_documents_are_those_of_the_corpus(made):
    shards = TokenShards(made)
    for split in ("train", "valid", "test"):
        assert list(shards.documents(split)) == expected(split)
        assert len(expected(split)) == shards.manifest.documents[split] > 1


def test_few_shards_are_open(made, monkeypatch):
    monkeypatch.setattr(token_shards, "MAX_OPEN", 2)
    shards = TokenShards(made)
    tokens = flat(shards.tokenizer, expected("train"))
    assert [shards.read(first, 1).item() for first in range(0, len(tokens), 97)] == tokens[::97]
    assert len(shards._open) == 2


def test_bad_input_damaged_held_out_documents(made, tmp_path):
    folder = shutil.copytree(made, tmp_path / "shards")
    path = next(folder.glob("valid-*"))
    path.write_bytes(path.read_bytes().replace(b"abc", b"abd", 1))
    with pytest.raises(QkvError, match=rf"{path.name} is damaged: its sha256 is not the one in shards\.json, in "):
        list(TokenShards(folder).documents("valid"))


def test_bad_input_a_shard_of_another_corpus(made, tmp_path):
    """Valid by itself, of the same size and tokenizer, but not the one of the manifest."""
    folder = shutil.copytree(made, tmp_path / "shards")
    listed = json.loads((folder / "shards.json").read_text())["train"]
    names = [entry["file"] for entry in listed if entry["tokens"] == 97]
    (folder / names[0]).write_bytes((folder / names[1]).read_bytes())
    with pytest.raises(QkvError, match=rf"{names[0]} is damaged or of another corpus: its checksum is not the one"):
        list(TokenShards(folder).documents("train"))


def test_bad_ranges(made):
    shards = TokenShards(made)
    with pytest.raises(ValueError, match=rf"tokens must be 0 to {len(shards):,}, got 0 to {len(shards) + 1:,}"):
        shards.read(0, len(shards) + 1)
    with pytest.raises(ValueError, match="got -1 to 4"):
        shards.read(-1, 5)
