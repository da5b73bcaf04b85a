import json

import pytest
import torch

from qkv import runs, tasks
from qkv.data import ShardOptions, ShardRows, Tokenizer, TokenRows, tokenize_corpus
from qkv.errors import QkvError
from qkv.tasks.text_source import TextOptions, make_rows, read_splits
from qkv.train import Loop, Settings, create_run

SIZES = {"dim": 16, "heads": 2, "hidden_dim": 16, "layers": 1, "max_length": 64}
TEXTS = [f"The words of line {number} are {'new ' * (number % 5)}words." for number in range(200)]
OPTIONS = ShardOptions(tokenizer="characters", size=50, held_out=0.1, shard_tokens=500, column="body")


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "a.jsonl"
    path.write_text("".join(json.dumps({"body": text}) + "\n" for text in TEXTS))
    return path


@pytest.fixture(scope="module")
def shards(corpus):
    tokenize_corpus(str(corpus), corpus.parent / "shards", OPTIONS)
    return str(corpus.parent / "shards")


def load(source, **options):
    return tasks.tasks["text"].load({"train_file": source, "length": 13, **options})


def make_loop(task, folder, **changes):
    config = runs.configure(
        "text", runs.preset("text", None), {"model": SIZES, "data": task.options, "train": {"batch_size": 8, **changes}}
    )
    run = runs.config.Run(folder) if folder.exists() else create_run(folder)
    return Loop(task.objective(runs.build(config, task), config.train), config.train, run)


def test_a_task_of_shards_has_their_tokenizer_and_splits(corpus, shards):
    task = load(shards)
    assert task.tokenizer == Tokenizer.load(f"{shards}/tokenizer.json")
    assert sorted(text for documents in task.splits.values() for text in documents) == sorted(TEXTS)
    assert all(len(list(task.splits[split])) > 5 for split in ("valid", "test"))
    assert task.options["digest"] == task.tokenizer.digest
    assert load(shards, tokenizer=f"{shards}/tokenizer.json").tokenizer == task.tokenizer
    evaluated = load(shards, test_file=str(corpus), column="body")
    assert list(evaluated.splits["test"]) == TEXTS


def test_rows_of_shards_and_of_a_text(corpus, shards):
    settings = Settings(steps=1, batch_size=8)
    task = load(shards)
    assert isinstance(make_rows(task.splits["train"], task.tokenizer, task.settings, settings), ShardRows)
    plain = load(str(corpus), column="body", tokenizer="characters", size=50)
    assert isinstance(make_rows(plain.splits["train"], plain.tokenizer, plain.settings, settings), TokenRows)
    assert list(plain.splits["train"])[:2] == TEXTS[:2]


def test_columns_of_one_file_are_tokenized_apart(tmp_path):
    """The cache of tokens knows the column."""
    lines = [json.dumps({"text": f"abab {number}", "body": f"baba {number}"}) + "\n" for number in range(60)]
    (tmp_path / "a.jsonl").write_text("".join(lines))
    Tokenizer.train(["ab0123456789 "], "characters", 30).save(tmp_path / "t.json")
    found = []
    for column in ("text", "body"):
        task = load(str(tmp_path / "a.jsonl"), column=column, tokenizer=str(tmp_path / "t.json"), length=5)
        rows = make_rows(task.splits["train"], task.tokenizer, task.settings, Settings(steps=1))
        found.append(task.tokenizer.decode(rows.read(0).tolist()))
    assert found == ["abab 0"[:5], "baba 0"[:5]]


def test_training_on_shards_goes_on_bit_for_bit(shards, tmp_path, monkeypatch):
    """Stopped after a few steps of the second epoch, and continued by a task that opens the shards again."""
    changes = {"steps": 70, "validate_every": 35, "learning_rate": 0.01}
    whole = make_loop(load(shards), tmp_path / "whole", **changes)
    assert len(whole.objective.order(0)) == 8
    whole.train()
    first = make_loop(load(shards), tmp_path / "parts", **changes)
    monkeypatch.setattr(first.interrupt, "raise_if_received", lambda: None)
    step = first._train_step

    def stopped(update):
        if first.progress.step == 41:
            raise KeyboardInterrupt
        step(update)

    monkeypatch.setattr(first, "_train_step", stopped)
    with pytest.raises(KeyboardInterrupt):
        first.train()
    again = make_loop(load(shards), tmp_path / "parts", **changes)
    again.resume()
    again.train()
    assert all(torch.equal(whole.best[name], again.best[name]) for name in whole.best)
    losses = [line["loss"] for line in whole.run.read_metrics() if "loss" in line]
    assert losses[-1] < 0.9 * losses[0]


def test_bad_input(shards, corpus, tmp_path):
    with pytest.raises(QkvError, match="the token shards have changed since the run was started, in data.source="):
        load(shards, shards="0")
    Tokenizer.train(["ab"], "characters", 9).save(tmp_path / "t.json")
    with pytest.raises(QkvError, match="the shards were written with another tokenizer than the given one, in "):
        load(shards, tokenizer=str(tmp_path / "t.json"))
    other = Tokenizer.load(tmp_path / "t.json").to_record()
    with pytest.raises(QkvError, match="the shards were written with another tokenizer than the given one, in "):
        tasks.tasks["text"].load_with_vocabulary({"source": shards}, other)
    with pytest.raises(ValueError, match="unknown tokenizer 'byte'; did you mean 'bytes'"):
        load(shards, tokenizer="byte")
    with pytest.raises(QkvError, match="a folder of token shards cannot be read as text; give the text"):
        tasks.tasks["masked"].load({"source": shards})
    with pytest.raises(QkvError, match=r"has no column 'text' \(data\.column\); it has: body"):
        load(str(corpus))


def test_the_splits_of_other_sources_are_as_before():
    given, splits = read_splits(TextOptions())
    assert given == TextOptions()
    assert list(splits) == ["train", "valid", "test"]


def test_sizes_of_a_model_come_from_the_shards(shards):
    assert tasks.tasks["text"].model_sizes({"source": shards}) is None
    assert tasks.tasks["text"].model_sizes({"source": "python", "size": 300}).sizes == (300,)


def test_masked_reads_a_column(tmp_path):
    sentences = "One line is here. Another line is there. A third one is last."
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"body": f"{sentences} {n}."}) + "\n" for n in range(60)))
    task = tasks.tasks["masked"].load({"source": str(tmp_path / "a.jsonl"), "column": "body", "size": 120})
    assert len(list(task.with_data().texts["train"])) == 54
    assert len(list(task.with_test_file(str(tmp_path / "a.jsonl")).texts["test"])) == 60
