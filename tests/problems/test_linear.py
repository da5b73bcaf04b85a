import pytest

from tests.problems.calls import run

approx = pytest.approx


def test_d1_features():
    answer = run("D1")
    assert (answer["features of D = 2, K = 3"], answer["packed of D = 2, K = 3"]) == (7, 6)
    assert (answer["features of D = 16, K = 3"], answer["packed of D = 16, K = 3"]) == (273, 153)
    assert answer["by formula"] == [7, 6, 273, 153]
    assert answer["apart from the first K terms"] <= 1e-12
    assert answer["apart when packed"] <= 1e-12


def test_d2_square():
    assert run("D2")["five ways"] == approx([(1 * -2 + 3 * 2) ** 2] * 5)


def test_d3_approximation():
    answer = run("D3")
    errors = answer["errors for K = 1..7 by size of the scores"]
    assert all(len(found) == 7 for found in errors.values())
    assert errors["1"] == sorted(errors["1"], reverse=True)
    assert errors["0.5"][2] < errors["1"][2] < errors["2"][2] < errors["4"][2]
    assert answer["apart from qkv.attend(kind='taylor')"] <= 1e-12
    assert answer["weights turn negative below, 2 terms"] == approx(-1)
    root = answer["weights turn negative below, 4 terms"]
    assert root == approx(-1.596, abs=5e-4)
    assert 1 + root + root**2 / 2 + root**3 / 6 == approx(0, abs=1e-9)
    assert answer["least sum of 3 terms"] == approx(0.5)
    assert answer["an odd order raises an error"] is True


def test_d4_linear():
    answer = run("D4")
    assert answer["features"] == 153
    assert answer["multiplications"] == answer["counted"] == [n * 153 * 129 for n in answer["lengths"]]
    assert answer["growth at each doubling"] == [2.0] * 3
    assert answer["the other order, counted"] == 2048**2 * 80


def test_d5_two_orders():
    answer = run("D5")
    assert max(answer[f"{what} apart"] for what in ("two orders", "fast form", "token by token")) <= 1e-12
    assert answer["elements of the state"] == 35
