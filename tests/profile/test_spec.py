"""What `qkv cost` is asked about: the sizes of presets, without their data."""

import pytest

from qkv.data import Tokenizer
from qkv.data.corpora import archive
from qkv.profile.spec import find
from qkv.tasks import DigitsTask, MaskedTask, ModelSizes, TextTask, WordsTask, tasks
from tests.data.archives import need, need_word_tests

SPECS = [f"{task}:{preset}" for task in tasks if task != "pairs" for preset in tasks[task].presets]


@pytest.fixture
def cut_off(monkeypatch, tmp_path):
    """A machine that has fetched nothing and can fetch nothing."""

    def fetch(wanted):
        raise AssertionError(f"{wanted.file} was to be fetched")

    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(archive, "_fetch", fetch)


@pytest.mark.usefixtures("cut_off")
@pytest.mark.parametrize("spec", SPECS)
def test_every_preset_is_counted_without_a_network(spec, tmp_path):
    assert find(spec).label == spec
    assert not (tmp_path / "cache").exists()


def count(spec):
    return sum(weight.numel() for weight in find(spec).module.parameters())


@pytest.mark.usefixtures("cut_off")
def test_the_vocabulary_is_of_the_size_asked_for(monkeypatch):
    """Blocks have 12 matrices of d x d, in all, and 13 vectors of d: biases and two norms."""
    monkeypatch.setattr(Tokenizer, "train", None)
    d, blocks = 384, 6 * (12 * 384**2 + 13 * 384)
    assert count("text:wikitext") == (16_000 + 1024) * d + blocks + 2 * d
    heads = 2 * (d**2 + d) + 2 * d + 8192 + 2 * d + 2  # the pooler, what fills in with its norm and biases, the pairs
    assert count("masked:wikitext") == (8192 + 128 + 2) * d + 2 * d + blocks + heads
    told = "the vocabulary is of the size asked for, data.size = {}; no text was read"
    assert [find(spec).note for spec in ("text:wikitext", "masked:wikitext", "masked:small")] == [
        told.format(size) for size in ("16,000", "8,192", "2,000")
    ]
    assert [find(spec).note for spec in ("pronounce:quick", "recall:small")] == [None, None]


def sizes(task, preset):
    """Those without the data, and those of the data."""
    options = tasks[task].presets[preset]().data
    return tasks[task].model_sizes(options).sizes, tasks[task].load(options).sizes()


@pytest.mark.parametrize("task", ["text", "masked"])
def test_a_trained_vocabulary_has_the_size_asked_for(task):
    expected, found = sizes(task, "small")
    assert expected == found


@pytest.mark.slow
@pytest.mark.parametrize("task", ["text", "masked", "words"])
def test_so_has_that_of_wikitext(task):
    need_word_tests()
    expected, found = sizes(task, "wikitext")
    assert expected == found


@pytest.mark.parametrize("part", ["small", pytest.param("whole", marks=pytest.mark.slow)])
def test_digits_are_as_they_are_said_to_be(part):
    need(part)
    job = DigitsTask.load({"part": part})
    assert DigitsTask.model_sizes({"part": part}) == ModelSizes(job.sizes(), job.shape, DigitsTask.model_sizes({}).note)


def test_data_of_ones_own_have_to_be_read():
    assert TextTask.model_sizes({"tokenizer": "characters"}) is None
    assert TextTask.model_sizes({"tokenizer": "mine.json"}) is None
    assert TextTask.model_sizes({"train_file": "mine.txt", "size": 701}).sizes == (701,)
    assert MaskedTask.model_sizes({"tokenizer": "mine.json"}) is None
    assert WordsTask.model_sizes({"source": "wikitext", "least": 7}) is None
    assert WordsTask.model_sizes({}) is None
    assert DigitsTask.model_sizes({"train_file": "mine.npz"}) is None
    assert DigitsTask.model_sizes({"test_file": "mine.npz"}) is None
