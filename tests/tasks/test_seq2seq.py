import math
from types import SimpleNamespace

import pytest
import torch

from qkv import runs, tasks
from qkv.data import Pair, Vocabulary
from qkv.inference.seq2seq import Search, _split_batches, evaluate_pairs, predict_targets
from qkv.models import EncoderDecoder, EncoderDecoderConfig
from qkv.tasks.seq2seq import Seq2SeqData, collate, count_tokens, encode, hold_out, loss, make_objective
from qkv.train import Settings
from tests.tasks.tiny import write_pairs

PAIRS = [Pair(tuple(word), (tuple(word[::-1]), tuple(word.upper()))) for word in ("abc", "ab", "cab", "bacca", "b")]


@pytest.fixture
def strings():
    return Seq2SeqData.build({"train": PAIRS, "valid": PAIRS[:2], "test": PAIRS[2:]})


@pytest.fixture
def model(strings):
    config = EncoderDecoderConfig(dim=16, heads=2, hidden_dim=16, encoder_layers=1, decoder_layers=1, max_length=24)
    return EncoderDecoder(config, len(strings.sources), len(strings.targets)).eval()


def test_every_target_is_an_example(strings):
    examples = encode(strings, PAIRS)
    assert len(examples) == 10
    assert [strings.targets.decode(target) for _, target in examples[:2]] == [["c", "b", "a"], ["A", "B", "C"]]


def test_collate_shifts_the_target():
    source, mask, given, wanted = collate([([5, 6], [7]), ([5], [8, 9])])
    assert source.tolist() == [[5, 6], [5, 0]]
    assert mask.tolist() == [[True, True], [True, False]]
    assert given.tolist() == [[Vocabulary.START, 7, 0], [Vocabulary.START, 8, 9]]
    assert wanted.tolist() == [[7, Vocabulary.END, 0], [8, 9, Vocabulary.END]]
    assert count_tokens((source, mask, given, wanted)) == 5


def test_loss_is_the_sum_over_real_tokens(strings, model):
    examples = encode(strings, PAIRS)
    together = loss(model, collate(examples), 0.0)
    apart = sum(loss(model, collate([example]), 0.0) for example in examples)
    torch.testing.assert_close(together, apart, rtol=1e-5, atol=0)


def test_hold_out_does_not_depend_on_the_order():
    kept, held = hold_out(PAIRS, 2)
    again, held_again = hold_out(PAIRS[::-1], 2)
    assert len(held) == 2
    assert {p.source for p in held} == {p.source for p in held_again}
    assert {p.source for p in kept} == {p.source for p in again}
    assert not {p.source for p in kept} & {p.source for p in held}


def test_order_covers_every_example_once_an_epoch(strings, model):
    task = make_objective(model, strings, Settings(steps=1, batch_size=3))
    assert sorted(number for step in range(4) for number in task.order(step)) == list(range(10))


def test_validation_is_the_mean_over_held_out_tokens(strings, model):
    task = make_objective(model, strings, Settings(steps=1, label_smoothing=0.1))
    tensors = collate(encode(strings, PAIRS[:2]))
    with torch.no_grad():
        expected = float(loss(model, tensors, 0.0)) / count_tokens(tensors)
        assert task.validate(model, lambda: None) == pytest.approx(expected, rel=1e-5)


def test_answers_keep_the_order_of_the_questions(strings, model):
    sources = [pair.source for pair in PAIRS]
    alone = [predict_targets(model, strings.sources, [source], Search(beams=3, n_best=2))[0] for source in sources]
    together = predict_targets(model, strings.sources, sources, Search(beams=3, n_best=2), batch_size=2)
    assert [[h.tokens for h in best] for best in together] == [[h.tokens for h in best] for best in alone]


@pytest.mark.parametrize("batch_size", [1, 48, 256])
def test_threads_answer_what_one_answers(strings, model, batch_size):
    sources = [pair.source for pair in PAIRS] * 29
    alone, together = (
        predict_targets(model, strings.sources, sources, Search(), batch_size, threads) for threads in (None, 3)
    )
    assert [[h.tokens for h in best] for best in together] == [[h.tokens for h in best] for best in alone]


@pytest.mark.parametrize(
    ("count", "threads", "expected"), [(15, None, {3}), (15, 3, {1}), (16, 3, {3}), (96, 3, {1}), (96, 1, {3})]
)
def test_few_sources_and_many_have_one_thread_of_torch_s_each(strings, model, count, threads, expected):
    seen, before, start = set(), torch.get_num_threads(), model.start
    model.start = lambda *given: seen.add(torch.get_num_threads()) or start(*given)
    try:
        torch.set_num_threads(3)
        predict_targets(model, strings.sources, [PAIRS[0].source] * count, Search(), threads=threads)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert seen == expected


@pytest.mark.parametrize(
    ("count", "batch_size", "threads", "sizes"),
    [
        (0, 256, 2, []),
        (1, 256, 2, [1]),
        (63, 256, 2, [63]),  # two of less than 32 do not pay
        (64, 256, 2, [32, 32]),
        (300, 256, 1, [150, 150]),
        (300, 256, 2, [150, 150]),
        (520, 256, 2, [130, 130, 130, 130]),
        (7, 3, 2, [3, 3, 1]),  # but a batch is never larger than asked
        (101, 50, 1, [34, 34, 33]),
    ],
)
def test_batches_give_each_thread_as_much_to_do(count, batch_size, threads, sizes):
    pieces = _split_batches(list(range(count)), batch_size, threads)
    assert [len(piece) for piece in pieces] == sizes
    assert [number for piece in pieces for number in piece] == list(range(count))


def test_a_batch_has_at_least_one(strings, model):
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        predict_targets(model, strings.sources, [], Search(), batch_size=0)


def test_sources_are_judged_in_the_case_that_is_known(strings, model, monkeypatch):
    asked = []

    def predict_targets(model, vocabulary, sources, search):
        asked.extend(sources)
        return [[SimpleNamespace(tokens=())]] * len(sources)

    monkeypatch.setattr("qkv.inference.seq2seq.predict_targets", predict_targets)
    pairs = [Pair(tuple("CaB"), (("B",),))]
    evaluate_pairs(model, pairs, strings.sources, strings.targets, Search())
    assert asked == [list("cab")]


def test_evaluate_by_hand(strings, model, monkeypatch):
    """One right, one with a wrong letter, one empty."""
    said = [["B", "A", "C"], ["x"], []]
    monkeypatch.setattr(
        "qkv.inference.seq2seq.predict_targets", lambda *_: [[type("H", (), {"tokens": t})] for t in said]
    )
    monkeypatch.setattr(Vocabulary, "decode", lambda self, tokens: tokens)
    figures = evaluate_pairs(model, strings.splits["test"], strings.sources, strings.targets, Search())
    # cab -> bac or CAB, bacca -> accab or BACCA, b -> b or B
    assert figures["examples"] == 3
    assert figures["sequence_error_rate"] == 1.0
    assert figures["token_error_rate"] == pytest.approx((2 + 5 + 1) / (3 + 5 + 1))
    assert not math.isnan(figures["jaccard"])


@pytest.mark.parametrize(
    ("source", "target", "part", "family", "needed"),
    [
        ("a" * 25, "B", "train", "encoder_decoder", 25),
        ("a", " ".join("B" * 24), "train", "encoder_decoder", 25),
        ("a" * 25, "B", "test", "encoder_decoder", 25),
        ("a" * 25, "B", "train", "recurrent", None),
        ("a", " ".join("B" * 24), "train", "recurrent", 25),
        ("a" * 24, " ".join("B" * 23), "train", "encoder_decoder", None),
    ],
)
def test_a_pair_that_the_model_cannot_take_is_named(tmp_path, source, target, part, family, needed):
    data = write_pairs(tmp_path)
    with open(data[f"{part}_file"], "a") as file:
        file.write(f"{source}\t{target}\n")
    changes = {"model": {"family": family, "dim": 16, "max_length": 24}, "data": data}
    config = runs.configure("pairs", runs.preset("pairs", None), changes)
    job = tasks.tasks["pairs"].load(data)
    model = runs.build(config, job)
    if needed is None:
        job.validate_model(model)
        return
    message = rf"{source[:10]}.* in .*{part}.tsv needs {needed} tokens.*=24: .*--set model.max_length={needed}"
    with pytest.raises(ValueError, match=message):
        job.validate_model(model)
