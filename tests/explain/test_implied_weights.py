import math

import pytest
import torch

from qkv.attention import Elu, Linear, Softmax, Taylor
from qkv.explain import AttentionCall, compare_kinds, copying
from qkv.explain.implied_weights import taylor_polynomial


def call(causal, queries=7, keys=7):
    torch.manual_seed(3)
    q, k, v = (torch.randn(1, 1, n, d, dtype=torch.float64) for n, d in ((queries, 5), (keys, 5), (keys, 3)))
    return AttentionCall(Softmax(), q, k, v, {"causal": causal}, Softmax()(q, k, v, causal=causal))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("attention", [Taylor(), Taylor(order=4), Elu(), Linear(), Softmax()], ids=lambda a: a.kind)
def test_the_recurrence_equals_the_implied_matrix(attention, causal):
    found = compare_kinds(call(causal), attention)
    assert found.recurrence_error < 1e-12
    torch.testing.assert_close(found.exact, call(causal).weights()[0, 0])


def test_orders_are_the_polynomials():
    """Order 2 and 4 are Taylor attention; every order by a plain loop."""
    one = call(True)
    found = compare_kinds(one, Taylor())
    for order in (2, 4):
        difference = Taylor(order=order).weights(one.q, one.k, causal=True)[0, 0] - found.exact
        assert found.order_errors[order].weights == pytest.approx(float(difference.abs().max()), rel=1e-9)
    for error in found.order_errors:
        rows = []
        for i in range(7):
            x = [
                sum(a * b for a, b in zip(one.q[0, 0, i].tolist(), one.k[0, 0, j].tolist(), strict=True)) / 5**0.5
                for j in range(i + 1)
            ]
            terms = [sum(s**n / math.factorial(n) for n in range(error.order + 1)) for s in x]
            rows += [term / sum(terms) for term in terms]
        assert error.smallest == pytest.approx(min(rows), abs=1e-9)


def test_the_polynomial():
    assert taylor_polynomial(torch.tensor(2.0), 3) == pytest.approx(1 + 2 + 2 + 8 / 6)


def test_the_state_grows_key_by_key():
    one = call(False)
    found = compare_kinds(one, Linear())
    assert found.feature_dim == 5
    whole = one.k[0, 0].mT @ one.v[0, 0]
    torch.testing.assert_close(found.state_norms[-1], whole.norm(dim=0))
    torch.testing.assert_close(found.state_norms[0], one.k[0, 0, 0].norm() * one.v[0, 0, 0].abs())


def test_two_heads_raise():
    one = call(False)
    with pytest.raises(ValueError, match="one sequence and one head"):
        compare_kinds(AttentionCall(one.attention, one.q.repeat(1, 2, 1, 1), one.k, one.v, {}, one.output), Taylor())


@pytest.mark.parametrize(
    ("beta", "first", "second", "errors"),
    [
        (1, (0.665241, 0.090031, 0.244728), (0.211942, 0.576117, 0.211942), (0.3067, 0.6702)),
        (2, (0.981690, 0.000329, 0.017980), (0.017668, 0.964663, 0.017668), (0.01815, 0.05587)),
        (4, None, None, (1.1e-7, 3.6e-7)),
    ],
)
def test_copying_holds_in_the_limit_only(beta, first, second, errors):
    found = copying(beta, Softmax(scale=1.0))
    assert found.norms == pytest.approx([beta * 2**0.5, beta, beta * 2**0.5])
    assert found.scores == [[2 * beta**2, 0, beta**2], [0, beta**2, 0], [beta**2, 0, 2 * beta**2]]
    assert found.weights[0] == pytest.approx(first or (1, 0, 0), abs=6e-7)
    assert found.weights[1] == pytest.approx(second or (0, 1, 0), abs=6e-7)
    assert found.errors[:2] == pytest.approx(errors, rel=4e-2 if beta == 4 else 2e-4)
