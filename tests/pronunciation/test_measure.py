import math

import pytest

from qkv.data import Pair
from qkv.pronunciation import NeuralG2P, measure_pronunciation
from qkv.pronunciation.measure import wilson_interval
from tests.pronunciation.tiny import made_up, spoken


@pytest.fixture(scope="module")
def network(tiny):
    return NeuralG2P.open(tiny)


def pairs(words):
    return [Pair(tuple(word), (spoken(word),)) for word in words]


def test_a_model_that_has_learned_its_words_is_right(network):
    figures = measure_pronunciation(network, pairs(made_up(3)))
    assert (figures.wer, figures.per, figures.words, figures.refused) == (0.0, 0.0, 216, 0)
    assert figures.wer_low == pytest.approx(0, abs=1e-12)
    assert 0 < figures.wer_high < 0.02
    assert figures.words_per_second > 0


def test_errors_are_counted_against_the_closest_reference(network):
    right = Pair(tuple("bad"), (("K",), spoken("bad")))
    wrong = Pair(tuple("dab"), (("D", "AE2", "B"),))
    figures = measure_pronunciation(network, [right, wrong])
    assert (figures.wer, figures.per) == (0.5, pytest.approx(1 / 6))
    assert measure_pronunciation(network, [right, wrong], stress=False).wer == 0.0


def test_what_the_model_cannot_take_is_wrong(network):
    figures = measure_pronunciation(
        network, [*pairs(["bad"]), Pair(tuple("xyz"), (("Z",),)), Pair(tuple("b" * 300), (("B",),))]
    )
    assert (figures.words, figures.refused, figures.wer) == (3, 2, pytest.approx(2 / 3))


def test_the_right_one_among_the_first_few(network):
    """The second-best answer as the reference: wrong at first, found among two."""
    second = network.predict(["bad"], best=2)[0][1].phones
    case = [Pair(tuple("bad"), (second,))]
    figures = measure_pronunciation(network, case, best=2)
    assert (figures.wer, figures.missing) == (1.0, 0.0)
    assert measure_pronunciation(network, case).missing == 1.0


def test_the_interval_is_wilsons():
    """Its ends p solve |share - p| = z sqrt(p (1 - p) / n); for a share of 0 they are 0 and z^2 / (n + z^2)."""
    z = 1.959964
    for wrong, total in ((2400, 12000), (1, 7), (5, 7)):
        for end in wilson_interval(wrong, total):
            assert abs(wrong / total - end) == pytest.approx(z * math.sqrt(end * (1 - end) / total))
    assert wilson_interval(0, 41) == pytest.approx((0, z**2 / (41 + z**2)))
    assert wilson_interval(41, 41) == pytest.approx((41 / (41 + z**2), 1))
