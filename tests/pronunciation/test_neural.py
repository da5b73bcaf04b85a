"""The model alone: what it says is what its plain form says, whichever form it takes to say it."""

import math

import pytest
import torch

from qkv import runs, tasks
from qkv.decode import SearchLimits, beam, greedy
from qkv.models.fast.fused import FusedEncoderDecoder
from qkv.pronunciation import NeuralG2P

WORDS = ["abba", "bad", "a", "dabadabad", "kodak", "bebop"]
LETTERS, PHONES = "abdekop", ("AE1", "B", "D", "EH0", "K", "OW2", "P")


@pytest.fixture
def network(tmp_path):
    """A Transformer of chance that writes a few phones."""
    file = tmp_path / "words.tsv"
    file.write_text("".join(f"{letter}\t{phone}\n" for letter, phone in zip(LETTERS, PHONES, strict=True)))
    sizes = {"dim": 20, "heads": 2, "hidden_dim": 28, "encoder_layers": 2, "decoder_layers": 1, "max_length": 13}
    model = {**sizes, "positions": "rope", "convolution": 0}
    data = {"train_file": str(file), "held_out": 0}
    config = runs.configure("pronounce", runs.preset("pronounce", "pupil"), {"model": model, "data": data})
    job = tasks.tasks["pronounce"].load(config.data)
    return NeuralG2P(runs.build(config, job).eval(), job)


def spoken(network, word, search):
    inputs = torch.tensor([network.task.data.sources.encode(word)])
    return search(network.model, inputs, None, SearchLimits(12))


def test_it_says_what_the_plain_model_says(network):
    assert isinstance(network._fast_model, FusedEncoderDecoder)
    for word, (way,) in zip(WORDS, network.predict(WORDS), strict=True):
        (wanted,) = spoken(network, word, greedy)
        assert way.phones == tuple(network.task.data.targets.decode(wanted.tokens))
        assert way.probability == pytest.approx(math.exp(wanted.log_probability), rel=1e-4)


def test_so_does_a_beam(network):
    for word, ways in zip(WORDS, network.predict(WORDS, best=3, beams=4), strict=True):
        (wanted,) = spoken(network, word, lambda *given: beam(*given, beams=4, n_best=3))
        phones = [tuple(network.task.data.targets.decode(one.tokens)) for one in wanted]
        assert [way.phones for way in ways] == [one for one in phones if one]


@pytest.mark.parametrize("batch_size", [1, 2, 256])
def test_batches_make_no_difference(network, batch_size):
    said = network.predict(WORDS, batch_size=batch_size)
    assert [way.phones for (way,) in said] == [way.phones for word in WORDS for (way,) in network.predict([word])]


@pytest.mark.parametrize(("given", "expected"), [(1, 1), (3, 3)])
def test_it_takes_as_many_threads_as_torch_is_told(network, given, expected):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(given)
        assert network._num_threads == expected
        said = network.predict(WORDS * 17)
        assert torch.get_num_threads() == given
    finally:
        torch.set_num_threads(before)
    assert [way.phones for (way,) in said] == [way.phones for (way,) in network.predict(WORDS)] * 17


def test_a_model_that_cannot_be_folded_says_as_it_is(tmp_path, tiny):
    network = NeuralG2P.open(tiny)
    assert network._fast_model is network.model
    assert network._num_threads is None
    assert network.predict(["bad"])[0][0].phones == ("B", "AE1", "D")


def test_only_a_model_that_cannot_read_long_words_refuses_them(network, tiny):
    """A recurrent network writes 24 tokens here, but reads any number."""
    assert network.unsupported_reason("ab" * 7) == "it has 14 letters, and the model takes 13"
    assert NeuralG2P.open(tiny).unsupported_reason("bad" * 20) is None
    assert len(NeuralG2P.open(tiny).predict(["bad" * 20])) == 1
