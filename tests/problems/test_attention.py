import math

import pytest

from tests.problems.calls import run

approx = pytest.approx


def test_b1_softmax_of_three():
    answer = run("B1")
    assert answer["sum"] == approx(11.1073, abs=5e-5)
    assert answer["weights"] == approx([0.66524, 0.24473, 0.09003], abs=5e-6)


def test_b2_scaled_once():
    answer = run("B2")
    assert answer["apart from torch"] <= 1e-12
    assert answer["apart from a plain loop"] <= 1e-12
    assert answer["sum of a row"] == approx(1, abs=1e-12)
    assert answer["sum of a row scaled twice"] == approx(1 / math.sqrt(11), abs=1e-12)


def test_b3_projections():
    answer = run("B3")
    assert (answer["key_dim"], answer["weights of one projection"], answer["of Q, K and V"]) == (64, 589824, 1769472)
    assert set(answer["with 1, 2, 3, 12, 48 heads"]) == {1769472}


def test_b4_most_similar_to_itself():
    answer = run("B4")
    assert answer["score of the first token with itself"] == 1
    assert answer["score of the first token with the second"] == 3
    assert answer["equal norms: least lead of itself over another"] > 0


def test_b5_copying():
    answer = run("B5")
    assert answer["norms at beta 1"] == approx([math.sqrt(2), 1, math.sqrt(2)])
    assert answer["scores at beta 1"] == [approx(row) for row in ([2, 0, 1], [0, 1, 0], [1, 0, 2])]
    one, two = answer["weights at beta 1"], answer["weights at beta 2"]
    assert one == [approx(row, abs=5e-7) for row in ([0.665241, 0.090031, 0.244728], [0.211942, 0.576117, 0.211942])]
    assert two == [approx(row, abs=1e-6) for row in ([0.981690, 0.000329, 0.017980], [0.017668, 0.964663, 0.017668])]
    assert answer["relative errors at beta 1"] == approx([0.3067, 0.6702], abs=5e-5)
    assert answer["relative errors at beta 2"] == approx([0.01815, 0.05587], abs=5e-6)
    assert answer["relative errors at beta 4"] == approx([1.1e-7, 3.6e-7], abs=5e-9)


def test_b6_two_uses():
    answer = run("B6")
    e = math.e
    assert answer["source weighed by the decoder's state"] == [approx([4 / 9, 1 / 9, 4 / 9])]
    own = [e / (2 * e + 1), 1 / (2 * e + 1), e / (2 * e + 1)]
    assert answer["first row of the source weighed by itself"] == approx(own)
    assert answer["shapes"] == [[1, 3], [3, 3]]
    assert answer["additive, the classic one, through the same call"] == [1, 3]


def test_b7_sinusoidal():
    answer = run("B7")
    assert answer["apart from the formula"] <= 1e-12
    assert answer["apart from a fixed rotation"] <= 1e-12
    assert answer["permuted without positions, apart"] <= 1e-12
    assert answer["permuted with positions, apart"] > 0.01


@pytest.mark.slow
def test_b8_train_short_test_long():
    """Who holds at 8 times the trained length, who does not, and who is in between."""
    found = run("B8")["nats above the entropy"]
    long, rise = ({name: v[-1] for name, v in found.items()}, {name: v[-1] - v[0] for name, v in found.items()})
    assert rise["shaw"] < 0.25
    assert rise["alibi"] < 0.25
    assert rise["shaw"] < rise["t5"]
    assert rise["alibi"] < rise["t5"]
    assert min(long["rope"], long["sinusoidal"], long["learned"]) > 0.7
    assert long["t5"] < max(long["rope"], long["sinusoidal"], long["learned"])
    assert max(long["shaw"], long["alibi"]) < long["t5"]


@pytest.mark.slow
def test_b9_one_text_and_two_objectives():
    answer = run("B9")
    # 4 x (64 x 64 + 64), 64 x 128 + 128 + 128 x 64 + 64, and two norms of 128
    assert answer["parameters of a block: original encoder, BERT, GPT"] == [16640 + 16576 + 256] * 3
    assert answer["the first token sees the last: original encoder, BERT, GPT"] == [True, True, False]
    assert answer["can write on: BERT, GPT"] == [False, True]
    assert answer["BERT's hidden tokens, over the best constant guess"] > 1.5
    assert answer["GPT's next tokens, over the best constant guess"] > 1.5
    losses = answer["loss of every update"]
    assert losses["BERT"][0] == pytest.approx(
        math.log(600) + math.log(2), abs=0.5
    )  # both objectives, of nothing learned
    assert [len(of) for of in losses.values()] == [400, 400]


@pytest.mark.slow
def test_b10_two_relations():
    answer = run("B10")
    assert min(answer["two heads, both relations right"]) > 0.99
    assert max(answer["one head, both relations right"]) < 0.9
    assert len(set(answer["parameters"])) == 1
