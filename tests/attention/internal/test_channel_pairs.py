import pytest
import torch

from qkv.attention.internal.channel_pairs import channel_multiplications, channel_pairs, channel_pairs_backward
from qkv.cost import count_multiplications


def definition(asks, keys, rates):
    sums = rates.cumsum(1)
    exponents = (sums[:, None] - sums[:, :, None]).clamp(max=0)  # rows i j channels
    return torch.einsum("rgic,rjc,rijc->rgij", asks, keys, torch.exp(exponents)).tril()


@pytest.mark.parametrize("time", [0, 1, 2, 3, 7, 8, 13])
def test_equals_the_definition_with_gradients(time):
    torch.manual_seed(0)
    asks = torch.randn(3, 2, time, 5, dtype=torch.float64, requires_grad=True)
    keys = torch.randn(3, time, 5, dtype=torch.float64, requires_grad=True)
    rates = 50 * torch.rand(3, time, 5, dtype=torch.float64) ** 8
    expected = definition(asks, keys, rates)
    torch.testing.assert_close(channel_pairs(asks, keys, rates), expected, rtol=1e-12, atol=1e-12)
    arriving = torch.randn_like(expected)
    gradients = torch.autograd.grad(expected, (asks, keys), arriving)
    found = channel_pairs_backward(arriving, asks.detach(), keys.detach(), rates)
    for actual, wanted in zip(found, gradients, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-12, atol=1e-12)


def test_large_rates_underflow_and_never_overflow():
    """exp of the running sum alone would be exp(64 * 800) = inf."""
    rates = torch.full((1, 64, 2), 800.0)
    pairs = channel_pairs(torch.ones(1, 1, 64, 2), torch.ones(1, 64, 2), rates)
    assert torch.equal(pairs[0, 0], 2 * torch.eye(64))


def test_small_rates_after_large_ones_keep_their_digits():
    rates = torch.full((1, 64, 1), 1e-3)
    rates[:, :8] = 500.0
    pairs = channel_pairs(torch.ones(1, 1, 64, 1), torch.ones(1, 64, 1), rates)
    assert abs(float(pairs[0, 0, 63, 20]) / torch.exp(torch.tensor(-0.043)).item() - 1) < 1e-6


@pytest.mark.parametrize("time", [1, 6, 16])
def test_counted_multiplications(time):
    with count_multiplications() as counted:
        channel_pairs(torch.ones(3, 2, time, 5), torch.ones(3, time, 5), torch.ones(3, time, 5))
    assert counted.total == 3 * 2 * 5 * channel_multiplications(time)
