"""Pairs of subwords: trained on the training split, saved with the run, answered as exact texts."""

import json

import pytest

from qkv import runs, tasks
from qkv.data import Tokenizer
from qkv.errors import QkvError
from tests.cli.run import qkv

TINY = ("dim=16", "heads=2", "hidden_dim=16", "encoder_layers=1", "max_length=24")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "train.tsv"
    path.write_text("".join(f"The number  {n}.\tLe nombre {n}, d\u00e9j\u00e0!\n" for n in range(300)))
    return path


def load(file, **options):
    return tasks.tasks["pairs"].load({"train_file": str(file), **options})


def test_the_tokenizers_are_those_of_the_training_split(file):
    task = load(file, source="bpe:300", target="bpe:320")
    train = task.data.splits["train"]
    texts = [[task.join_source(pair.source) for pair in train], [task.join_target(pair.targets[0]) for pair in train]]
    assert len(texts[0]) == 270
    for side, own, size in zip((task.data.sources, task.data.targets), texts, (300, 320), strict=True):
        assert side.tokenizer == Tokenizer.train(own, "bytes", size)


def test_texts_are_exact_and_the_held_out_pairs_are_those_of_characters(file):
    subwords, plain = load(file, source="bpe:300", target="words"), load(file)
    for split in ("train", "valid"):
        texts = [plain.join_source(pair.source) for pair in plain.data.splits[split]]
        assert [subwords.join_source(pair.source) for pair in subwords.data.splits[split]] == texts
        assert [pair.targets for pair in subwords.data.splits[split]] == [
            pair.targets for pair in plain.data.splits[split]
        ]
    everything = [pair.source for split in ("train", "valid") for pair in subwords.data.splits[split]]
    assert "The number  7." in [subwords.join_source(source) for source in everything]


def test_a_shared_vocabulary_is_of_both_sides(file):
    task = load(file, source="bpe:300", target="bpe:300", shared=True)
    assert task.data.sources is task.data.targets
    train = task.data.splits["train"]
    texts = [task.join_source(pair.source) for pair in train] + [task.join_target(pair.targets[0]) for pair in train]
    assert task.data.sources.tokenizer == Tokenizer.train(texts, "bytes", 300)


def test_a_restored_task_reads_its_data_with_its_own_tokenizer(file):
    task = load(file, source="bpe:300", target="bpe:300", shared=True)
    record = json.loads(json.dumps(task.vocabulary()))
    other = tasks.tasks["pairs"].restore({**task.options, "held_out": 7}, record).with_data()
    assert other.data.sources == task.data.sources
    assert len(other.data.splits["valid"]) == 7
    assert other.join_source(other.data.splits["valid"][0].source).startswith("The number  ")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"source": "bpe:100"}, "data.source: the unit 'bpe:100' must be bpe:SIZE"),
        ({"target": "wrods"}, "data.target: unknown unit 'wrods'; did you mean 'words'?"),
        (
            {"shared": True},
            "shared needs subwords of one size on both sides, such as bpe:8000, got source='characters'",
        ),
        ({"shared": True, "source": "bpe:300", "target": "bpe:301"}, "got source='bpe:300' and target='bpe:301'"),
    ],
)
def test_impossible_units_are_refused(file, options, said):
    with pytest.raises(ValueError, match="^data|^shared") as caught:
        load(file, **options)
    assert said in str(caught.value)


def test_the_vocabulary_of_another_unit_is_refused(file):
    plain = load(file)
    with pytest.raises(ValueError, match="the unit bpe:300 needs a vocabulary with a tokenizer"):
        tasks.tasks["pairs"].restore({**plain.options, "source": "bpe:300"}, plain.vocabulary())


def test_tied_embeddings_need_one_vocabulary(file):
    tied = {"model": {"tied": True, "dim": 16, "heads": 2}}
    config = runs.configure("pairs", runs.preset("pairs", None), tied)
    shared, own = (load(file, source="bpe:300", target="bpe:300", shared=shared) for shared in (True, False))
    shared.validate_model(runs.build(config, shared))
    with pytest.raises(ValueError, match="model.tied=True needs one vocabulary for both sides: --set data.shared"):
        own.validate_model(runs.build(config, own))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that has learned to copy a few words."""
    folder = tmp_path_factory.mktemp("subwords")
    file = folder / "train.tsv"
    words = ("Yes, sir!", "No.", "Why  not?", "caf\u00e9", "Maybe")
    file.write_text("".join(f"{word} {n % 3}\t{word} {n % 3}\n" for n in range(30) for word in words))
    changes = [*(f"model.{one}" for one in (*TINY, "tied=True")), "train.learning_rate=0.01", "train.warmup=10"]
    changes += ["data.source=bpe:300", "data.target=bpe:300", "data.shared=True", "data.held_out=0"]
    settings = [part for one in changes for part in ("--set", one)]
    qkv(
        "train", "pairs", "--train-file", str(file), "--run", str(folder / "run"), "--steps", "250", *settings, "--json"
    )
    return folder / "run"


def test_a_run_answers_with_exact_texts(run):
    found = json.loads(qkv("predict", str(run), "caf\u00e9 2", "Why  not? 1", "--json"))
    assert [one["answers"][0]["text"] for one in found] == ["caf\u00e9 2", "Why  not? 1"]


def test_a_run_is_evaluated_and_loaded_with_its_tokenizer(run):
    found = json.loads(qkv("eval", str(run), "--split", "valid", "--metrics", "exact,chrf", "--json"))
    assert found["metrics"]["exact"]["value"] == 1
    _, task, model = runs.load(run)
    assert model.lm_head.weight is model.source_embedding.weight is model.target_embedding.weight
    reader = task.text_input(model)
    source = reader.read("Yes, sir! 0")
    assert "".join(source.tokens) == "Yes, sir! 0"
    assert source.notes == []
    assert "".join(reader.target_names(reader.predict_target(source).ids)) == "Yes, sir! 0"
    assert reader.candidates(source)[0].place == "answer"


def test_a_tokenizer_that_was_changed_is_refused(run, tmp_path):
    record = json.loads((run / "vocabulary.json").read_text())
    record["sources"]["tokenizer"]["model"] = {"type": "BPE", "vocab": {}, "merges": []}
    with pytest.raises((ValueError, QkvError), match="tokenizer"):
        tasks.tasks["pairs"].restore({"source": "bpe:300", "target": "bpe:300"}, record)
