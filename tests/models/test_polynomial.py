import pytest
import torch

from qkv.models import Polynomial


@pytest.mark.parametrize("degree", [0, 1, 2, 5])
def test_it_finds_a_polynomial_again(degree):
    x = torch.linspace(0, 1, 23, dtype=torch.float64)
    y = sum((n + 1) * (-1) ** n * x**n for n in range(degree + 1))
    at = torch.tensor([0.1, 0.7, 1.3], dtype=torch.float64)
    expected = sum((n + 1) * (-1) ** n * at**n for n in range(degree + 1))
    torch.testing.assert_close(Polynomial(degree).fit(x, y)(at), expected, rtol=0, atol=1e-10)


def test_least_squares_by_the_normal_equations():
    x, y = torch.rand(17, dtype=torch.float64), torch.randn(17, dtype=torch.float64)
    powers = torch.stack([x**n for n in range(4)], 1)
    coefficients = torch.linalg.solve(powers.T @ powers, powers.T @ y)
    torch.testing.assert_close(Polynomial(3).fit(x, y)(x), powers @ coefficients, rtol=0, atol=1e-9)


def test_bad_input():
    with pytest.raises(ValueError, match="degree must be at least 0, got -1"):
        Polynomial(-1)
    with pytest.raises(ValueError, match=r"more than degree=3 values each, got shapes \(3,\) and \(3,\)"):
        Polynomial(3).fit(torch.rand(3), torch.rand(3))
    with pytest.raises(ValueError, match="the polynomial has no coefficients yet; fit it first"):
        Polynomial(3)(torch.rand(3))
