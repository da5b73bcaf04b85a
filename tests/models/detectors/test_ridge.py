"""Ridge regression from batches: the closed form over all examples."""

import pytest
import torch

from qkv.models.detectors.ridge import RidgeRegression


def closed_form(x, y, penalty):
    ones = torch.cat([x, torch.ones(len(x), 1)], 1).double()
    ridge = penalty * torch.eye(ones.shape[1], dtype=torch.double)
    ridge[-1, -1] = 0
    return torch.linalg.lstsq(ones.T @ ones + ridge, ones.T @ y.double()).solution


def test_batches_give_the_solution_of_all_examples():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(50, 3, generator=generator), torch.randn(50, 2, generator=generator)
    classes = torch.arange(50) % 2
    model = RidgeRegression(2, 3, 2, penalty=0.5)
    for part in range(0, 50, 7):
        model.add(x[part : part + 7], y[part : part + 7], classes[part : part + 7])
    for label in range(2):
        own = classes == label
        torch.testing.assert_close(
            model.weights[label].double(), closed_form(x[own], y[own], 0.5), rtol=1e-4, atol=1e-5
        )
    wanted = x[0] @ model.weights[1, :-1] + model.weights[1, -1]
    torch.testing.assert_close(model(x[0])[1], wanted)


def test_error_is_that_of_the_weights_before():
    model = RidgeRegression(1, 1, 1, penalty=1e-9)
    x, y, classes = torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [5.0]]), torch.zeros(2, dtype=torch.long)
    assert model.add(x, y, classes).item() == pytest.approx(9 + 25)
    assert model.add(x, y, classes).item() == pytest.approx(0, abs=1e-6)


def test_examples_that_are_not_finite_change_nothing():
    model = RidgeRegression(1, 2, 1, penalty=1.0)
    model.add(torch.ones(1, 2), torch.ones(1, 1), torch.zeros(1, dtype=torch.long))
    before = model.weights.clone()
    model.add(torch.tensor([[torch.nan, 1.0]]), torch.ones(1, 1), torch.zeros(1, dtype=torch.long))
    assert torch.equal(model.weights, before)


def test_a_regression_in_float64_predicts_in_float64():
    ridge = RidgeRegression(2, 3, 4, penalty=1.0).double()
    assert ridge(torch.ones(5, 3, dtype=torch.float64)).dtype == torch.float64
