import math

import pytest
import torch
from torch import nn

from qkv.train import Settings
from qkv.train.optimizer import clip_grad_norm, load_optimizer_state, make_optimizer, optimizer_state


def pair_of_nets(size):
    """Two equal nets with equal gradients, of about this size; one weight has none."""
    nets = []
    for _ in range(2):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
        for weight in list(net.parameters())[:3]:
            weight.grad = size * torch.randn_like(weight)
        nets.append(net)
    return nets


@pytest.mark.parametrize("size", [1e-3, 0.1, 1.0, 1e6])
def test_it_is_what_torch_gives(size):
    ours, torchs = pair_of_nets(size)
    expected = float(nn.utils.clip_grad_norm_(torchs.parameters(), 1.0))
    length = clip_grad_norm(torch.optim.AdamW(ours.parameters()), 1.0)
    assert length == pytest.approx(expected, rel=1e-6)
    for mine, theirs in zip(ours.parameters(), torchs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-6, atol=0)


def test_a_gradient_by_hand():
    """|(6, 8)| = 10, and (0.6, 0.8) is left of it; |(0.3, 0.4)| = 0.5 is short enough."""
    weight = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = torch.optim.AdamW([weight])
    for before, length, after in (([6.0, 8.0], 10.0, [0.6, 0.8]), ([0.3, 0.4], 0.5, [0.3, 0.4])):
        weight.grad = torch.tensor(before, dtype=torch.float64)
        assert clip_grad_norm(optimizer, 1.0) == pytest.approx(length)
        assert weight.grad.tolist() == pytest.approx(after, rel=1e-6)


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_gradient_that_is_not_finite_has_a_length_that_is_not(value):
    weight = nn.Parameter(torch.zeros(2))
    weight.grad = torch.tensor([value, 1.0])
    assert not math.isfinite(clip_grad_norm(torch.optim.AdamW([weight]), 1.0))
    assert weight.grad[1] == 1


def test_no_gradient_has_length_0():
    assert clip_grad_norm(torch.optim.AdamW(nn.Linear(2, 3).parameters()), 1.0) == 0


def test_two_steps_of_sgd_by_hand():
    """w = 1, gradient 1: velocities 1 and 1.9, so w is 1 - 0.1 - 0.19; a vector does not decay."""
    weight = nn.Module()
    weight.w = nn.Parameter(torch.ones(1, dtype=torch.float64))
    settings = Settings(steps=1, optimizer="sgd", learning_rate=0.1, weight_decay=0.5)
    optimizer = make_optimizer(weight, settings)
    for _ in range(2):
        weight.w.grad = torch.ones(1, dtype=torch.float64)
        optimizer.step()
    assert weight.w.item() == pytest.approx(0.71)
    again = make_optimizer(weight, settings)
    load_optimizer_state(again, optimizer_state(optimizer))
    weight.w.grad = torch.ones(1, dtype=torch.float64)
    again.step()  # velocity 2.71
    assert weight.w.item() == pytest.approx(0.439)
