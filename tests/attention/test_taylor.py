import math
from itertools import product

import pytest
import torch

from qkv.attention import Case, Taylor, taylor_features
from qkv.attention.contract import identities
from tests.attention.loops import attention, dot, random_qkv


def polynomial(x, order):
    return sum(x**n / math.factorial(n) for n in range(order + 1))


@pytest.mark.parametrize("order", [2, 4, 6])
def test_equals_plain_loops(order):
    q, k, v = random_qkv(queries=9, keys=9, key_dim=3)
    decay = torch.rand(6, dtype=torch.float64)
    expected = attention(
        q, k, v, lambda x, y, at: polynomial(dot(x, y) / math.sqrt(3), order), causal=True, decay=decay
    )
    for chunk in (1, 4, 100):
        out = Taylor(order, chunk=chunk, backend="chunked")(q, k, v, causal=True, decay=decay)
        torch.testing.assert_close(out, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("order", range(6))
@pytest.mark.parametrize("key_dim", [1, 2, 5])
def test_features_of_any_order(order, key_dim):
    """phi(q).phi(k) is the polynomial, with C(key_dim + order, order) features."""
    q, k = torch.randn(2, 7, key_dim, dtype=torch.float64)
    left, right = taylor_features(q, order), taylor_features(k, order)
    assert left.shape == (7, math.comb(key_dim + order, order))
    expected = polynomial((q @ k.T), order)
    torch.testing.assert_close(left @ right.T, expected, rtol=1e-12, atol=1e-12)


def test_feature_counts_by_hand():
    """Packed by symmetry: 6 features instead of 7 for key_dim 2, 153 instead of 273 for 16."""
    assert Taylor().feature_dim(2) == 6
    assert Taylor().feature_dim(16) == 153


def test_the_square_of_a_dot_product():
    """(q.k)^2 = x1^2 y1^2 + x2^2 y2^2 + 2 x1 x2 y1 y2, from the features of degree 2."""
    x1, x2, y1, y2 = 0.3, -1.7, 2.1, 0.9
    q, k = torch.tensor([[x1, x2], [y1, y2]], dtype=torch.float64)
    difference = taylor_features(q, 2) @ taylor_features(k, 2) - taylor_features(q, 1) @ taylor_features(k, 1)
    assert float(2 * difference) == pytest.approx(x1**2 * y1**2 + x2**2 * y2**2 + 2 * x1 * x2 * y1 * y2, rel=1e-12)


@pytest.mark.parametrize("order", [2, 4, 6])
def test_weights_are_positive_and_a_mean(order):
    q, k = 30 * torch.randn(2, 1, 3, 50, 5, dtype=torch.float64)
    weights = Taylor(order).weights(q, k)
    assert weights.min() > 0
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 3, 50, dtype=torch.float64))


@pytest.mark.parametrize(("order", "zero"), [(1, -1.0), (3, -1.596)])
def test_odd_orders_turn_negative(order, zero):
    """Below -1 for order 1 and below -1.596 for order 3: Taylor attention therefore rejects odd orders."""
    assert polynomial(zero + 0.001, order) > 0 > polynomial(zero - 0.001, order)
    with pytest.raises(ValueError, match=f"order must be even and at least 2.*got {order}"):
        Taylor(order)


def test_gradients_after_a_first_call_without_them():
    """Tables of monomials are cached between calls: those made in inference mode must work in training."""
    x = torch.randn(37, dtype=torch.float64, requires_grad=True)  # of a width that no other test has
    y = torch.randn(37, dtype=torch.float64)
    with torch.inference_mode():
        taylor_features(x, 2)
    (gradient,) = torch.autograd.grad(taylor_features(x, 2) @ taylor_features(y, 2), x)
    torch.testing.assert_close(gradient, (1 + x.detach() @ y) * y)


def test_higher_orders_come_closer_to_softmax():
    q, k, v = random_qkv(heads=3)
    softmax = torch.softmax(q @ k.mT / math.sqrt(11), -1) @ v
    errors = [(Taylor(order)(q, k, v) - softmax).norm().item() for order in (2, 4, 6, 8)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.1 * errors[0]


@pytest.mark.slow
@pytest.mark.parametrize(("order", "causal"), list(product([2, 4], [True, False])))
@pytest.mark.parametrize("score", [1.0, 10.0])
def test_float32_rounding_at_real_sizes(order, causal, score):
    """The linear form sums thousands of features; its rounding error must stay close to the definition's."""
    case = Case(1, 2, 2, 1031, 1031, 16, 17, causal=causal, max_score=score, dtype=torch.float32)
    assert identities.rounding_ratio(Taylor(order, backend="chunked"), case, seeds=16 if order == 2 else 4) <= 2


def test_auto_takes_the_form_with_fewer_multiplications():
    mechanism = Taylor()
    short, long = (Case(1, 8, 8, n, n, 16, 64).shape for n in (64, 4096))
    assert set(mechanism.cost(short).executed) == {"scores", "values"}
    assert set(mechanism.cost(long).executed) == {"scores", "values", "write", "read"}
    quadratic = sum(Taylor(backend="reference").cost(long).executed.values())
    assert sum(mechanism.cost(long).executed.values()) < quadratic / 10
