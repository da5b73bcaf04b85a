import pytest

from tests.data.archives import need_word_tests
from tests.problems.calls import run

approx = pytest.approx


def test_e1_alternating_sum():
    answer = run("E1")
    assert answer["apart from sigmoid(1000 (sum of even - sum of odd positions + h_0))"] <= 1e-12
    assert [answer[f"{who} positions outweigh"] for who in ("even", "odd")] == approx([1, 0])
    assert answer["the two are equal"] == approx(0.5)


def test_e2_greedy_against_beam():
    answer = run("E2")
    assert (answer["greedy"], answer["beam of 2"]) == (["A", "END"], ["B", "END"])
    assert answer["its probability"] == approx(0.07)
    assert answer["probability of that"] == approx(0.27)
    assert sum(node["kept"] for node in answer["expanded nodes"]) == 1 + 2 + 2


@pytest.mark.slow
def test_e3_attention_helps():
    answer = run("E3")
    without, with_attention, transformer = (answer[name] for name in ("LSTM", "LSTM with attention", "Transformer"))
    for score in ("jaccard", "cosine", "damerau_levenshtein"):
        assert with_attention[score] > without[score]
        assert transformer[score] > without[score]
    assert max(with_attention["loss"], transformer["loss"]) < without["loss"]


def test_e4_similarities():
    answer = run("E4")
    assert answer["kitten, sitting"] == approx([0.428571, 0.746203, 0.571429], abs=5e-7)
    assert answer["ab, ba"] == answer["ab, aabb"] == approx([1, 1, 0.5])
    assert answer["two empty sequences"] == [1, 1, 1]


@pytest.mark.slow
def test_e5_the_mean_agrees_best_but_for_the_center():
    """More is asked of the whole comparison in benchmarks/word_vectors.py; here nothing may be reversed."""
    need_word_tests()
    answer = run("E5")
    assert answer["pairs judged"] == 305
    assert min(answer["mean"], answer["center"]) >= 0.33
    assert answer["context"] < answer["concatenation"] < answer["center"]
    assert answer["mean"] - answer["concatenation"] >= 0.03
    assert len(answer["loss of every update"]["skip-gram"]) == 838


@pytest.mark.slow
def test_e6_learning_rates():
    answer = run("E6")
    assert (answer["best rate with pooling"], answer["best rate with stride"]) == (0.01, 0.01)
    assert min(answer["test accuracy at the best rate"]) >= 0.86
    assert min(answer["training less test accuracy"]) > 0
    assert len(answer["loss of every update"]) == 6


@pytest.mark.slow
def test_e6_the_rate_is_chosen_without_the_test_digits():
    answer = run("E6")
    held_out = answer["held-out accuracy"]
    assert list(held_out) == list(answer["loss of every update"])
    for downsample, name in (("pool", "pooling"), ("stride", "stride")):
        rates = {rate: held_out[f"{downsample}, {rate:g}"] for rate in (0.1, 0.01, 0.001)}
        assert answer[f"best rate with {name}"] == max(rates, key=rates.get)
    assert "test accuracy" not in answer  # of what was not chosen, it is never asked
