import pytest

from tests.problems.calls import run


def test_c1_self_attention():
    answer = run("C1")
    assert answer["parameters"] == 100 * (2 * 36 + 25) == 9_700
    assert answer["multiplications by formula"] == 61 * 75**2 + 9_700 * 75 == 1_070_625
    assert answer["multiplications counted"] == 1_070_625


def test_c2_feed_forward():
    assert run("C2") == {"multiplications per token": 40_000, "of 75 tokens": 3_000_000, "parameters": 40_300}


def test_c3_layer_normalization():
    assert run("C3") == {"learned parameters": 200, "statistics per token": 2, "statistics of 75 tokens": 150}


def test_c4_four_layers():
    assert list(run("C4").values()) == [200_000, 200_800, 201_600, 211_600]


def test_c5_quadratic():
    answer = run("C5")
    lengths = answer["lengths"]
    assert answer["multiplications"] == answer["counted"] == [2 * n * n * 64 for n in lengths]
    assert answer["growth at each doubling"] == [4.0] * 3
    assert len(answer["milliseconds"]) == len(lengths)


def test_c6_convolutional_nets():
    answer = run("C6")
    assert answer["4 classes, pool"] == [168_572, 354_944]
    assert answer["4 classes, stride"] == [224_892, 276_840]
    assert answer["4 classes, stride, padded by 1"] == [224_892, 278_784]
    assert answer["10 classes, pool"] == [169_298, 355_664]
    assert answer["10 classes, stride"] == [225_618, 277_560]
    assert answer["saved by stride"] == pytest.approx(0.22, abs=0.005)
