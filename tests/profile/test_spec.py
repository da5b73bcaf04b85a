"""`resolve_spec`: presets are sized without their data and built without memory for weights."""

import resource

import pytest

from qkv.cost import analyze
from qkv.cost.to_json import to_record
from qkv.data import Tokenizer
from qkv.data.corpora import archive
from qkv.models import family
from qkv.profile.spec import resolve_spec
from qkv.runs import configure
from qkv.tasks import DigitsTask, MaskedTask, ModelSizes, Preset, TextTask, WordsTask, tasks
from tests.data.archives import need, need_word_tests

SPECS = [f"{task}:{preset}" for task in tasks if task not in ("pairs", "classify") for preset in tasks[task].presets]


@pytest.fixture
def no_network(monkeypatch, tmp_path):
    """A machine with an empty cache and no network."""

    def fetch(wanted):
        raise AssertionError(f"{wanted.file} was to be fetched")

    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(archive, "_fetch", fetch)


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("spec", SPECS)
def test_every_preset_is_built_on_meta_without_a_network(spec, tmp_path):
    found = resolve_spec(spec)
    assert found.label == spec
    assert {weight.device.type for weight in found.module.parameters()} == {"meta"}
    assert not (tmp_path / "cache").exists()


def test_a_large_preset_takes_no_memory(monkeypatch):
    """More than 10^9 parameters, 4 GB in float32; the peak of this process grows by less than 200 MB."""
    large = Preset(
        "decoder", {"dim": 4096, "heads": 32, "hidden_dim": 16384, "layers": 6}, {"steps": 1}, {"size": 16000}
    )
    monkeypatch.setitem(TextTask.presets, "large", lambda: large)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    module = resolve_spec("text:large").module
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before  # KiB
    assert sum(weight.numel() for weight in module.parameters()) > 1e9
    assert grown < 200_000


@pytest.mark.parametrize("spec", ["recall:small", "pronounce:recurrent"])
def test_figures_are_those_of_a_model_with_weights(spec):
    """The second reads tensor values, so it runs on the CPU, with zeros for weights."""
    found = resolve_spec(spec)
    task, preset = spec.split(":")
    config = configure(task, tasks[task].presets[preset](), {})
    sizes = tasks[task].model_sizes(config.data) or ModelSizes(tasks[task].load(config.data).sizes())
    model = family(config.family).build(family(config.family).configure(config.model), *sizes.sizes)
    on_meta, with_weights = (analyze(m, found.inputs, {"n": 7, "m": 5}) for m in (found.module, model))
    assert to_record(on_meta) == to_record(with_weights)


def count(spec):
    return sum(weight.numel() for weight in resolve_spec(spec).module.parameters())


@pytest.mark.usefixtures("no_network")
def test_the_vocabulary_has_the_requested_size(monkeypatch):
    """Blocks have 12 matrices of d x d, in all, and 13 vectors of d: biases and two norms."""
    monkeypatch.setattr(Tokenizer, "train", None)
    d, blocks = 384, 6 * (12 * 384**2 + 13 * 384)
    assert count("text:wikitext") == (16_000 + 1024) * d + blocks + 2 * d
    heads = 2 * (d**2 + d) + 2 * d + 8192 + 2 * d + 2  # the pooler, what fills in with its norm and biases, the pairs
    assert count("masked:wikitext") == (8192 + 128 + 2) * d + 2 * d + blocks + heads
    note = "the vocabulary has the requested size, data.size = {}; no text was read"
    assert [resolve_spec(spec).note for spec in ("text:wikitext", "masked:wikitext", "masked:small")] == [
        note.format(size) for size in ("16,000", "8,192", "2,000")
    ]
    assert [resolve_spec(spec).note for spec in ("pronounce:quick", "recall:small")] == [None, None]


def sizes(task, preset):
    """Those without the data, and those of the data."""
    options = tasks[task].presets[preset]().data
    return tasks[task].model_sizes(options).sizes, tasks[task].load(options).sizes()


@pytest.mark.parametrize("task", ["text", "masked"])
def test_a_trained_vocabulary_has_the_requested_size(task):
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
    assert DigitsTask.model_sizes({"part": part}) == ModelSizes(
        job.sizes(), job.shape, note=DigitsTask.model_sizes({}).note
    )


def test_data_of_ones_own_have_to_be_read():
    assert TextTask.model_sizes({"tokenizer": "characters"}) is None
    assert TextTask.model_sizes({"tokenizer": "mine.json"}) is None
    assert TextTask.model_sizes({"train_file": "mine.txt", "size": 701}).sizes == (701,)
    assert MaskedTask.model_sizes({"tokenizer": "mine.json"}) is None
    assert WordsTask.model_sizes({"source": "wikitext", "least": 7}) is None
    assert WordsTask.model_sizes({}) is None
    assert DigitsTask.model_sizes({"train_file": "mine.npz"}) is None
    assert DigitsTask.model_sizes({"test_file": "mine.npz"}) is None
