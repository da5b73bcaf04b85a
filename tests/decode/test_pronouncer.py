"""Decoding of 1,000 real words that a model trained for moments on CMUdict has never seen."""

import pytest
import torch

from qkv import runs, tasks
from qkv.data import pad
from qkv.decode import beam, greedy
from qkv.inference.seq2seq import search_limits
from qkv.train import Loop, create_run

SIZES = {"dim": 64, "hidden_dim": 128, "encoder_layers": 1}
BATCH = 64
SIZE = 1000
CLOSE = {"abs": 1e-5, "rel": 1e-6}
"""Float32 rounding of a sum in another order; relative for the few outputs of 63 tokens that score near -90."""


@pytest.fixture(scope="module")
def pronouncer(tmp_path_factory):
    """The model, and the ids of the words."""
    job = tasks.tasks["pronounce"].load({})
    train = {"steps": 300, "batch_size": 128, "validate_every": 300}
    config = runs.configure("pronounce", runs.preset("pronounce", "quick"), {"model": SIZES, "train": train})
    model = runs.build(config, job)
    loop = Loop(job.objective(model, config.train), config.train, create_run(tmp_path_factory.mktemp("runs") / "run"))
    loop.train()
    model.load_state_dict(loop.best)
    return model.eval(), [job.data.sources.encode(pair.source) for pair in job.data.splits["test"][:SIZE]]


@torch.inference_mode()
def answers(pronouncer, size, search, **options):
    """Decode each word, in batches of this size."""
    model, words = pronouncer
    found = []
    for start in range(0, len(words), size):
        inputs, mask = pad(words[start : start + size])
        found += search(model, inputs, mask, search_limits(model), **options)
    return found


@pytest.fixture(scope="module")
def straight(pronouncer):
    """Greedy outputs in batches that mix short and long words."""
    return answers(pronouncer, BATCH, greedy)


@pytest.mark.slow
def test_the_model_has_learned_something(straight):
    """Or all answers might be empty, and equal for that."""
    assert len(straight) == SIZE
    assert len({hypothesis.tokens for hypothesis in straight}) > 900
    assert sum(hypothesis.finished for hypothesis in straight) > 900


@pytest.mark.slow
def test_a_beam_of_one_is_greedy(pronouncer, straight):
    found = answers(pronouncer, BATCH, beam, beams=1)
    assert [(one.tokens, one.finished) for (one,) in found] == [(one.tokens, one.finished) for one in straight]
    assert [one.log_probability for (one,) in found] == pytest.approx([h.log_probability for h in straight], **CLOSE)


@pytest.mark.slow
def test_a_word_alone_is_the_word_in_a_batch(pronouncer, straight):
    alone = answers(pronouncer, 1, greedy)
    assert [one.tokens for one in alone] == [one.tokens for one in straight]
    assert [one.score for one in alone] == pytest.approx([one.score for one in straight], **CLOSE)


@pytest.mark.slow
def test_the_n_best_of_a_word_are_those_in_a_batch(pronouncer):
    few = pronouncer[0], pronouncer[1][:192]
    alone, together = (answers(few, size, beam, beams=4, n_best=2) for size in (1, BATCH))
    assert [[one.tokens for one in best] for best in alone] == [[one.tokens for one in best] for best in together]
    for one, other in zip(alone, together, strict=True):
        assert [h.score for h in one] == pytest.approx([h.score for h in other], **CLOSE)
