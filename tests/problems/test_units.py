import math

import pytest

from tests.problems.calls import run

approx = pytest.approx


def test_a1_xor():
    answer = run("A1")
    assert answer["best line for XOR"] == 3
    assert answer["tables that a line can draw"] == 14  # all but XOR and its opposite
    assert (answer["perceptron on OR"], answer["perceptron on AND"]) == (4, 4)
    assert answer["perceptron on XOR"] <= 3
    assert (answer["2-2-1 network set by hand"], answer["2-2-1 network trained"]) == (4, 4)


def test_a2_linear_layers():
    assert run("A2")["apart"] <= 1e-12
    assert run("A2")["apart with a sigmoid between"] > 0.01


def test_a4_one_unit():
    answer = run("A4")
    assert answer["a"] == -0.5
    assert answer["sigmoid"] == approx(1 / (1 + math.exp(0.5)), abs=1e-7) == approx(0.377541, abs=5e-7)
    assert answer["relu"] == 0


def test_a5_separability():
    answer = run("A5")
    assert (answer["AND"], answer["OR"], answer["XOR"]) == (True, True, False)
    assert len(answer["least y (w.x + b) of the witnesses"]) == 2
    assert min(answer["least y (w.x + b) of the witnesses"]) > 0
    assert answer["certificate of XOR"] == approx([0.5] * 4)


def test_a6_softmax_of_two_classes():
    assert run("A6")["apart"] <= 1e-12
    assert run("A6")["apart with the sign flipped"] > 0.1


def test_a7_quadratic_objective():
    answer = run("A7")
    assert answer["gradient, apart from autograd"] <= 1e-12
    assert answer["minimizer, apart from gradient descent"] <= 1e-9
    assert answer["least value, apart from the formula"] <= 1e-12


@pytest.mark.slow
def test_a8_bias_and_variance():
    answer = run("A8")
    bias, variance = answer["bias^2 for degrees 1 to 12"], answer["variance"]
    # what a line leaves of sin(2 pi x): its power 1/2 less that of its slope, (sqrt(3)/pi)^2
    assert bias[0] == approx(0.5 - 3 / math.pi**2, abs=0.003)
    assert bias[0] > 10 * bias[2] > 100 * bias[4]
    assert variance == sorted(variance)
    totals = answer["bias^2 + variance + noise over the expected error"]
    assert totals == approx([1.0] * 12, abs=0.05)


def test_a9_batch_normalization():
    assert run("A9") == {"parameters": 240, "weights": 200, "norm": 40}
