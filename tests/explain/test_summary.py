import math

import pytest
import torch

from qkv.explain import summarize


def test_a_head_that_spreads_evenly():
    found = summarize(torch.full((5, 8), 1 / 8))
    assert found.entropy == pytest.approx(3.0)
    assert (found.first, found.largest, found.itself, found.previous) == (0.125, 0.125, 0.0, 0.0)


def test_a_head_that_attends_to_the_previous_token():
    weights = torch.zeros(5, 5)
    weights[0, 0] = 1
    weights[range(1, 5), range(4)] = 1
    found = summarize(weights)
    assert (found.entropy, found.previous) == (0.0, 1.0)
    assert found.itself == pytest.approx(0.2)
    assert found.first == pytest.approx(0.4)


def test_entropy_in_bits():
    a = (0.5, 0.25, 0.25)
    assert summarize(torch.tensor([a])).entropy == pytest.approx(-sum(x * math.log2(x) for x in a))


@pytest.mark.parametrize("shape", [(0, 3), (3,), (1, 2, 3)])
def test_bad_input(shape):
    with pytest.raises(ValueError, match="weights must be"):
        summarize(torch.zeros(shape))
