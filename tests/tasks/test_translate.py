"""The task translate with two files; Tatoeba itself is read in tests/data/corpora/test_tatoeba.py."""

import json
from pathlib import Path

import pytest

from qkv.data import Pair, SentencePair
from qkv.data.components import sentence_key
from qkv.errors import QkvError
from qkv.runs.data_hash import hash_training_files, require_unchanged
from qkv.storage import to_json
from qkv.tasks import ModelSizes, TranslateTask
from qkv.tasks.translation import task as module
from tests.cli.run import qkv
from tests.cli.run import run as run_qkv

NUMBERS = {1: "eins", 2: "zwei", 3: "drei", 4: "vier", 5: "f\u00fcnf"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """400 pairs of which each sentence is in one, and one empty line."""
    folder = tmp_path_factory.mktemp("files")
    lines = [(f"I have {n} cats, {m}.", f"Ich habe {n} Katzen, {NUMBERS[m]}.") for n in range(80) for m in NUMBERS]
    lines.insert(7, ("", "leer"))
    for name, side in (("a.en", 0), ("a.de", 1)):
        (folder / name).write_text("".join(f"{line[side]}\n" for line in lines))
    return {"source_file": str(folder / "a.en"), "target_file": str(folder / "a.de")}


def texts(task, split):
    return [
        (task.join_source(one.source), [task.join_target(t) for t in one.targets]) for one in task.data.splits[split]
    ]


def test_two_files_become_three_splits_without_common_sentences(files):
    task = TranslateTask.load({**files, "source": "bpe:300", "target": "bpe:300"})
    sizes = task.split_sizes()
    assert sum(sizes.values()) == 400
    assert 5 <= sizes["valid"] <= 40
    assert 5 <= sizes["test"] <= 40
    found = {split: texts(task, split) for split in sizes}
    for side in (lambda one: {sentence_key(one[0])}, lambda one: set(map(sentence_key, one[1]))):
        parts = [set().union(*map(side, own)) for own in found.values()]
        assert sum(map(len, parts)) == len(set().union(*parts))
    assert ("I have 0 cats, 1.", ["Ich habe 0 Katzen, eins."]) in found["train"] + found["valid"] + found["test"]
    assert task.warnings == ("skipped: line 8: empty in a.en",)
    assert task.data.sources is task.data.targets


def test_the_other_way(files):
    task = TranslateTask.load({**files, "source": "words", "target": "characters", "shared": False, "reverse": True})
    assert all(source.startswith("Ich habe") for source, _ in texts(task, "train"))
    assert all(target[0].startswith("I have") for _, target in texts(task, "train"))


def test_tatoeba_has_its_splits_and_groups_translations(monkeypatch):
    asked = []
    pairs = [SentencePair("Go.", "Va !"), SentencePair("Hi.", "Salut."), SentencePair("Go.", "Marche.")]
    splits = {"train": pairs, "valid": pairs[1:2], "test": pairs[:1]}
    monkeypatch.setattr(module, "tatoeba", lambda language: asked.append(language) or splits)
    task = TranslateTask.load({"language": "spanish", "source": "words", "target": "words", "shared": False})
    assert asked == ["spanish"]
    assert task.data.splits["train"] == [Pair(("Go.",), (("Va", "!"), ("Marche.",))), Pair(("Hi.",), (("Salut.",),))]
    assert task.split_sizes() == {"train": 2, "valid": 1, "test": 1}
    assert task.default_split == "test"


def test_a_file_of_pairs_is_split_the_same_way(files, tmp_path):
    both = [Path(files[name]).read_text().splitlines() for name in ("source_file", "target_file")]
    train, test = tmp_path / "train.tsv", tmp_path / "test.tsv"
    train.write_text("".join(f"{one}\t{other}\n" for one, other in zip(*both, strict=True) if one))
    test.write_text("I have 99 cats.\tIch habe 99 Katzen.\n")
    sizes = {"source": "bpe:300", "target": "bpe:300"}
    own, lines = TranslateTask.load({**sizes, "train_file": str(train)}), TranslateTask.load({**sizes, **files})
    assert {split: texts(own, split) for split in own.split_sizes()} == {
        split: texts(lines, split) for split in own.split_sizes()
    }
    tested = TranslateTask.load({**sizes, **files, "test_file": str(test)})
    assert texts(tested, "test") == [("I have 99 cats.", ["Ich habe 99 Katzen."])]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"language": "spansh"}, "unknown language 'spansh'; did you mean 'spanish'?"),
        ({"source_file": "a"}, "source_file and target_file belong together, got source_file='a' and target_file=None"),
        ({"source_file": "a", "target_file": "b", "train_file": "c"}, "both name the training data; give one of them"),
        ({"exclude": "standard"}, "exclude='standard' is for lists of words, of task pronounce; leave it out"),
        ({"source": "words"}, "shared needs subwords of one size on both sides"),
    ],
)
def test_impossible_options_are_refused(options, said):
    with pytest.raises(ValueError, match="^unknown|^source|^exclude|^shared") as caught:
        TranslateTask.load(options)
    assert said in str(caught.value)


def test_sizes_are_known_without_the_data(files):
    found = TranslateTask.model_sizes({"source": "bpe:4000", "target": "bpe:4000"})
    assert found == ModelSizes(
        (4000, 4000),
        note="the vocabularies have the requested sizes, bpe:4000 and bpe:4000; no text was read",
    )
    assert TranslateTask.model_sizes(files) is None
    assert TranslateTask.model_sizes({"source": "words", "target": "words", "shared": False}) is None


def test_a_small_translator_is_trained_evaluated_and_asked(files, tmp_path):
    run = str(tmp_path / "run")
    changes = ["model.dim=16", "model.hidden_dim=16", "model.max_length=32", "train.warmup=20"]
    changes += ["data.source=bpe:300", "data.target=bpe:300", "data.held_out=20"]
    settings = [part for one in changes for part in ("--set", one)]
    paths = ("--source-file", files["source_file"], "--target-file", files["target_file"])
    trained = run_qkv("train", "translate", *paths, "--run", run, "--steps", "5", *settings)
    assert "skipped: line 8: empty in a.en" in trained.stderr
    assert trained.code == 0
    assert "<svg" in (tmp_path / "run" / "report.html").read_text()
    found = json.loads(qkv("eval", run, "--metrics", "bleu,chrf", "--json"))
    assert found["split"] == "test"
    assert 0 <= found["metrics"]["bleu"]["value"] <= 100
    (one,) = json.loads(qkv("predict", run, "I have 3 cats, 4.", "--json"))
    assert isinstance(one["answers"][0]["text"], str)
    target = tmp_path / "run" / "data.json"
    assert set(json.loads(target.read_text())["sha256"]) == set(files.values())


def test_files_of_different_length_are_one_sentence(files, tmp_path):
    short = tmp_path / "short.de"
    short.write_text("eins\n")
    paths = ("--source-file", files["source_file"], "--target-file", str(short))
    said = qkv("train", "translate", *paths, "--run", str(tmp_path / "run"), code=2)
    assert said == (
        f"qkv: {files['source_file']} has 401 lines and {short} 1: line n of one must be the translation of line n of "
        "the other\n"
    )
    assert not (tmp_path / "run").exists()
    said = qkv("train", "pairs", *paths, "--run", str(tmp_path / "run"), code=2)
    assert "source_file" in said
    assert said.count("\n") == 1


def test_a_run_whose_file_changed_is_not_evaluated_on_other_splits(files, tmp_path):
    copies = {name: tmp_path / name for name in files}
    for name, path in files.items():
        copies[name].write_bytes(Path(path).read_bytes())
    task = TranslateTask.load(
        {**{name: str(path) for name, path in copies.items()}, "source": "bpe:300", "target": "bpe:300"}
    )
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "data.json").write_bytes(to_json(hash_training_files(task.options)))
    copies["target_file"].write_text("changed\n" * 401)
    with pytest.raises(QkvError, match="target_file has changed since the run was started"):
        require_unchanged(folder, "pass --test-file")
