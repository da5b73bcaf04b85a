import pytest
import torch

from qkv.metrics import NoisySample, bias_variance


def sets(noise, count=50):
    """Normal draws around 3 at each input; what is fitted is their mean."""

    def draw(number):
        random = torch.Generator().manual_seed(number)
        targets = 3 + noise * torch.randn(count, generator=random, dtype=torch.float64)
        fresh = 3 + noise * torch.randn(11, generator=random, dtype=torch.float64)
        return NoisySample(torch.zeros(count), targets, fresh)

    return draw


def test_the_mean_of_a_sample():
    """No bias, variance noise^2 / count: 4 / 50."""
    found = bias_variance(
        lambda x, y: lambda at: y.mean().expand(len(at)), sets(2.0), torch.zeros(11), torch.full((11,), 3.0), 2000
    )
    assert found.bias_squared < 1e-3
    assert found.variance == pytest.approx(4 / 50, rel=0.1)
    assert found.noise == pytest.approx(4, rel=0.05)
    assert found.expected_error == pytest.approx(found.total, rel=0.05)


def test_a_constant_has_bias_and_nothing_else():
    found = bias_variance(
        lambda x, y: lambda at: torch.ones(len(at)), sets(0.0), torch.zeros(11), torch.full((11,), 3.0), 7
    )
    assert (found.bias_squared, found.variance, found.noise, found.expected_error) == (4.0, 0.0, 0.0, 4.0)
    assert found.total == 4.0


def test_bad_input():
    fit = lambda x, y: lambda at: y.mean().expand(len(at))  # noqa: E731
    with pytest.raises(ValueError, match="resamples must be at least 2 to estimate a variance, got 1"):
        bias_variance(fit, sets(1.0), torch.zeros(11), torch.zeros(11), 1)
    with pytest.raises(ValueError, match=r"got \(7,\), \(11,\) and \(7,\)"):
        bias_variance(fit, sets(1.0), torch.zeros(7), torch.zeros(7), 3)


def test_errors_that_cancel_are_variance_and_no_bias():
    """Predictions 5 and 1 in turn around a truth of 3, fresh targets of 3.5: 0, 4, 0.25, (1.5^2 + 2.5^2) / 2."""

    def draw(number):
        return NoisySample(torch.zeros(1), torch.tensor([5.0 if number % 2 else 1.0]), torch.full((7,), 3.5))

    truth = torch.full((7,), 3.0)
    found = bias_variance(lambda x, y: lambda at: y.expand(len(at)), draw, torch.zeros(7), truth, 10)
    assert (found.bias_squared, found.variance, found.noise, found.expected_error) == (0.0, 4.0, 0.25, 4.25)
