import json
import os
import shutil

import pytest

from qkv.data import Tokenizer
from qkv.data.shards.shard_folder import is_shard_folder, read_manifest, read_tokenizer, require_files
from qkv.errors import QkvError
from tests.data.shards.corpora import make_shards


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_shards(tmp_path_factory.mktemp("made"))


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / "shards")


def test_a_manifest_counts_what_is_in_the_folder(folder):
    manifest, digest = read_manifest(folder)
    require_files(folder, manifest)
    listed = {entry.file for entry in (*manifest.train, *manifest.valid, *manifest.test)}
    assert {path.name for path in folder.iterdir()} == listed | {"shards.json", "tokenizer.json"}
    assert manifest.tokens == sum(entry.tokens for entry in manifest.train)
    assert sum(manifest.documents.values()) == 60
    assert manifest.tokenizer == read_tokenizer(folder, manifest).digest
    (folder / "shards.json").write_text(json.dumps(json.loads((folder / "shards.json").read_text())))
    assert read_manifest(folder)[0] == manifest
    assert read_manifest(folder)[1] != digest


def change(folder, **values):
    path = folder / "shards.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def change_first(folder, **values):
    train = json.loads((folder / "shards.json").read_text())["train"]
    change(folder, train=[{**train[0], **values}, *train[1:]])


BAD = {
    "newer format": (
        lambda f: change(f, format=3),
        r"shards\.json has format 3, but this version of qkv reads up to 2",
    ),
    "no shard": (lambda f: change(f, train=[]), r"shards\.json is damaged: train lists no shard"),
    "an empty shard": (
        lambda f: change_first(f, tokens=0),
        r"damaged: train-000000-000\.tokens must hold at least one token, but has 0",
    ),
    "a path": (lambda f: change_first(f, file="../x"), r"entry 0 of train must have file, tokens, documents, sha256"),
    "a wrong type": (lambda f: change_first(f, tokens="9"), "entry 0 of train must have file, tokens, documents"),
    "no list": (lambda f: change(f, valid=3), "valid must be a list, got 3"),
    "no tokenizer": (lambda f: change(f, tokenizer=3), "tokenizer must be a text, got 3"),
    "a wrong width": (lambda f: change(f, token_bytes=3), "token_bytes must be 2 or 4, got 3"),
    "not JSON": (lambda f: (f / "shards.json").write_text("{"), r"shards\.json is not JSON or is truncated"),
    "no manifest": (lambda f: (f / "shards.json").unlink(), r"shards\.json is missing, so this is no complete folder"),
    "not finished": (
        lambda f: (f / "shards.json").rename(f / "tokenizing.json"),
        "tokenizing is not finished; run the same qkv tokenize corpus again to continue it",
    ),
    "a missing shard": (
        lambda f: (f / "train-000001-000.tokens").unlink(),
        r"train-000001-000\.tokens is missing, in ",
    ),
    "a shard that was cut off": (
        lambda f: os.truncate(f / "train-000001-000.tokens", 50),
        r"train-000001-000\.tokens has 50 bytes, but its 97 tokens need 278: it is damaged or was cut off, in ",
    ),
    "missing held-out documents": (lambda f: next(f.glob("valid*")).unlink(), r"valid-.*\.jsonl is missing, in "),
    "longer held-out documents": (
        lambda f: next(f.glob("test*")).open("a").write("\n"),
        r"test-.*\.jsonl has .* bytes, but shards\.json has ",
    ),
    "another tokenizer": (
        lambda f: Tokenizer.train(["ab"], "characters", 9).save(f / "tokenizer.json"),
        r"tokenizer\.json is not the tokenizer that the shards were written with",
    ),
}


@pytest.mark.parametrize("what", BAD)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_bad_input(folder, what):
    damage, sentence = BAD[what]
    damage(folder)
    assert is_shard_folder(folder)
    with pytest.raises(QkvError, match=sentence):
        read_whole(folder)


def read_whole(folder):
    manifest, _ = read_manifest(folder)
    require_files(folder, manifest)
    read_tokenizer(folder, manifest)


def test_other_folders_are_none(tmp_path):
    (tmp_path / "a.txt").touch()
    assert not is_shard_folder(tmp_path)
    assert not is_shard_folder(tmp_path / "a.txt")
    assert not is_shard_folder("python")
