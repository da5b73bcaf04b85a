"""Token shards from the command line."""

import json

import pytest

from tests.cli.run import qkv

MODEL = ("--set", "model.dim=16", "--set", "model.hidden_dim=16", "--set", "model.layers=1", "--set", "model.heads=2")
SHARDS = ("--tokenizer", "characters", "--size", "60", "--held-out", "0.1", "--shard-tokens", "2000")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "words.jsonl"
    lines = [json.dumps({"body": f"Line {number} has a few words, and more é."}) + "\n" for number in range(250)]
    path.write_text("".join(lines))
    return path


def test_a_corpus_becomes_shards_that_are_trained_on(corpus, tmp_path):
    out, run = tmp_path / "shards", tmp_path / "run"
    made = json.loads(qkv("tokenize", "corpus", str(corpus), "--out", str(out), "--column", "body", *SHARDS, "--json"))
    assert sum(made["documents"].values()) == 250
    assert made["shards"] == len(list(out.glob("*.tokens"))) > 2
    printed = qkv("tokenize", "corpus", str(corpus), "--out", str(out), "--column", "body", *SHARDS)
    assert printed.startswith(f"{out}: {made['tokens']:,} tokens in {made['shards']} shards; documents: ")
    train = ("--steps", "2", "--set", "train.validate_every=2", "--set", "data.length=16", *MODEL, "--json")
    figures = json.loads(qkv("train", "text", "--run", str(run), "--train-file", str(out), *train))["figures"]["test"]
    assert json.loads(qkv("eval", str(run), "--json"))["tokens"] == figures["tokens"]
    hashes = json.loads((run / "data.json").read_text())["sha256"]
    assert list(hashes) == [str(out)]
    manifest = out / "shards.json"
    manifest.write_text(manifest.read_text().replace('"sample": 4000000', '"sample": 4000001'))
    said = qkv("eval", str(run), code=2)
    assert said.startswith(f"qkv: {out} has changed since the run was started, so the held-out split cannot be reprod")


def test_the_data_of_a_run_on_shards_are_hashed_by_their_manifest(corpus, tmp_path):
    """Shards are larger than memory: their checksums are in it."""
    from qkv.runs.data_hash import hash_training_files  # noqa: PLC0415

    out = tmp_path / "shards"
    qkv("tokenize", "corpus", str(corpus), "--out", str(out), "--column", "body", *SHARDS)
    before = hash_training_files({"source": str(out)})
    next(out.glob("*.tokens")).write_bytes(b"")
    assert hash_training_files({"source": str(out)}) == before
    (out / "shards.json").write_text("{}")
    assert hash_training_files({"source": str(out)}) != before


def test_bad_input(corpus, tmp_path):
    out = ("--out", str(tmp_path / "shards"))
    assert qkv("tokenize", "corpus", str(corpus), *out, *SHARDS, code=2) == (
        f"qkv: the line at byte 0 has no column 'text' (data.column); it has: body, in {corpus}\n"
    )
    assert (tmp_path / "shards" / "tokenizing.json").exists()
    said = qkv("train", "text", "--train-file", str(tmp_path / "shards"), "--run", str(tmp_path / "run"), code=2)
    assert said == (
        "qkv: tokenizing is not finished; run the same qkv tokenize corpus again to continue it, "
        f"in {tmp_path / 'shards'}\n"
    )
    qkv("tokenize", "corpus", str(corpus), *out, "--column", "body", *SHARDS)
    assert not (tmp_path / "shards" / "tokenizing.json").exists()
