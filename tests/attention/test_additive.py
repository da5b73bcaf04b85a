import math

import pytest
import torch

from qkv.attention import Additive
from qkv.cost import Shape
from tests.attention.loops import attention, dot, random_qkv


def test_equals_plain_loops():
    q, k, v = random_qkv()
    mechanism = Additive(key_dim=11, hidden_dim=17).double()
    u, w, s = (p.tolist() for p in (mechanism.query.weight, mechanism.key.weight, mechanism.score))

    def weight(x, y, at):
        hidden = [math.tanh(dot(u[n], x) + dot(w[n], y)) for n in range(17)]
        return math.exp(dot(s, hidden))

    mask = torch.rand(2, 7) > 0.3
    torch.testing.assert_close(
        mechanism(q, k, v, mask=mask), attention(q, k, v, weight, mask=mask), rtol=1e-12, atol=1e-13
    )


def test_every_parameter_gets_a_gradient():
    q, k, v = random_qkv()
    mechanism = Additive(key_dim=11).double()
    mechanism(q, k, v).sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in mechanism.parameters())


def test_cost_counts_its_parameters():
    mechanism = Additive(key_dim=11, hidden_dim=17)
    cost = mechanism.cost(Shape(2, 6, 5, 7, 11, 13, key_heads=3))
    assert sum(cost.parameters.values()) == sum(p.numel() for p in mechanism.parameters()) == 17 * (11 + 11 + 1)
    assert cost.needed["scores"] == 2 * 6 * 5 * 7 * 17


def test_keys_of_another_width_raise():
    q, k, v = random_qkv()
    with pytest.raises(ValueError, match="k has key_dim 11, but this Additive was built for 5"):
        Additive(key_dim=5).double()(q, k, v)


def test_autocast_keeps_scores_in_the_dtype_of_the_inputs():
    """These projections overflow float16."""
    q, k, v = (3e4 * x for x in torch.randn(3, 1, 2, 7, 5))
    mechanism = Additive(5)
    expected, weights = mechanism(q, k, v), mechanism.weights(q, k)
    with torch.autocast("cpu", torch.float16):
        assert torch.equal(mechanism(q, k, v), expected)
        assert torch.equal(mechanism.weights(q, k), weights)
        assert mechanism.start(1, 2, 5, 5).keys.dtype == torch.float32
    assert expected.isfinite().all()
