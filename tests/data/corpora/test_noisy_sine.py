import math

import pytest
import torch

from qkv.data import NoisySine
from qkv.metrics import bias_variance
from qkv.models import Polynomial

AT = torch.linspace(0, 1, 101, dtype=torch.float64)


def test_a_set_is_a_function_of_seed_and_index():
    sine = NoisySine(count=30, noise=0.2, seed=5)
    one, again, other = sine.draw(3, AT), sine.draw(3, AT), sine.draw(4, AT)
    assert torch.equal(one.inputs, again.inputs)
    assert torch.equal(one.targets, again.targets)
    assert not torch.equal(one.inputs, other.inputs)
    assert not torch.equal(one.fresh_targets, other.fresh_targets)
    assert torch.equal((one.inputs * 30).floor().long(), torch.arange(30))  # one in each piece


def test_truth_and_noise():
    sine = NoisySine(count=50, noise=0.3)
    errors = torch.cat([sine.draw(n, AT).targets - sine.truth(sine.draw(n, AT).inputs) for n in range(100)])
    assert errors.std().item() == pytest.approx(0.3, rel=0.05)
    assert abs(errors.mean().item()) < 0.02
    assert sine.truth(torch.tensor([0.25], dtype=torch.float64)).item() == pytest.approx(math.sin(math.pi / 2))


def test_richer_polynomials_trade_bias_for_variance():
    sine = NoisySine()
    found = [bias_variance(Polynomial(d).fit, lambda n: sine.draw(n, AT), AT, sine.truth(AT)) for d in range(1, 13)]
    assert found[0].bias_squared > 40 * found[2].bias_squared > 40 * 40 * found[4].bias_squared
    variances = [one.variance for one in found]
    assert variances == sorted(variances)
    assert [one.total / one.expected_error for one in found] == pytest.approx([1] * 12, rel=0.05)
    assert found[0].noise == pytest.approx(0.09, rel=0.05)


def test_bad_settings():
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        NoisySine(count=0)
    with pytest.raises(ValueError, match="noise must be 0 or more, got -1"):
        NoisySine(noise=-1)
