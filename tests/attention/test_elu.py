import math

import pytest
import torch
from torch.nn import functional

from qkv.attention import Elu
from tests.attention.loops import attention, random_qkv


def test_equals_plain_loops():
    q, k, v = random_qkv(queries=9, keys=9)

    def phi(x):
        return [a + 1 if a > 0 else math.exp(a) for a in x]

    expected = attention(q, k, v, lambda x, y, at: sum(a * b for a, b in zip(phi(x), phi(y), strict=True)), causal=True)
    for chunk in (1, 4, 100):
        out = Elu(chunk=chunk, backend="chunked")(q, k, v, causal=True)
        torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)


def test_features_are_elu_plus_one():
    x = torch.linspace(-30, 30, 101, dtype=torch.float64)
    torch.testing.assert_close(Elu().features(x), functional.elu(x) + 1, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("x", [-2.0, 0.0, 2.0])
def test_gradient_equals_that_of_elu_also_at_zero(x):
    x = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(Elu().features(x), x)
    assert float(slope) == min(1.0, float(x.detach().exp()))


def test_queries_far_below_zero_still_give_a_mean():
    q = torch.full((1, 1, 1, 4), -1e4)
    k, v = torch.randn(1, 1, 9, 4), torch.ones(1, 1, 9, 2)
    torch.testing.assert_close(Elu()(q, k, v), torch.ones(1, 1, 1, 2))
