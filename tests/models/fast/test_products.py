"""Products with packed weights equal x W' + b; those of integers equal it for numbers that they can hold."""

import pytest
import torch
from torch import nn

from qkv.models.fast.products import (
    Int8Product,
    PackedProduct,
    TransposedProduct,
    _post_operation,
    float_product,
    int8_works,
)

INPUTS, OUTPUTS = 29, 43
ACTIVATIONS = (None, nn.ReLU(), nn.GELU(), nn.GELU(approximate="tanh"), nn.Tanh())


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("rows", [1, 2, 17, 131])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("make", "dtype"), [(PackedProduct, torch.float32), (TransposedProduct, torch.float64)])
@torch.inference_mode()
def test_products(make, dtype, bias, rows, activation):
    x, weight, residual = (
        torch.randn(*size, dtype=dtype) for size in ((rows, INPUTS), (OUTPUTS, INPUTS), (rows, OUTPUTS))
    )
    given = torch.randn(OUTPUTS, dtype=dtype) if bias else None
    wanted = x.double() @ weight.double().T + (given.double() if bias else 0)
    tolerance = {"rtol": 0, "atol": 2e-5 if dtype == torch.float32 else 1e-13}
    found = make(weight, given, activation)(x)
    torch.testing.assert_close(found.double(), activation(wanted) if activation else wanted, **tolerance)
    added = make(weight, given).add_to(residual, x)
    torch.testing.assert_close(added.double(), residual.double() + wanted, **tolerance)


def exact_integers(rows):
    """Inputs and weights that int8 holds exactly: integers, with 127 in every row."""
    x, weight = torch.randint(-127, 128, (rows, INPUTS)).float(), torch.randint(-127, 128, (OUTPUTS, INPUTS)).float()
    x[:, 3], weight[:, 5] = 127, -127
    return x, weight


@pytest.mark.parametrize("rows", [1, 2, 17])
@torch.inference_mode()
def test_int8_is_exact_for_integers(rows):
    x, weight = exact_integers(rows)
    bias, residual = torch.randn(OUTPUTS), torch.randn(rows, OUTPUTS)
    scales = 2.0 ** torch.arange(rows)[:, None]
    wanted = scales * (x @ weight.T)
    tolerance = {"rtol": 1e-6, "atol": 1e-2}
    torch.testing.assert_close(Int8Product(weight, bias)(scales * x), wanted + bias, **tolerance)
    torch.testing.assert_close(Int8Product(weight, None).add_to(residual, scales * x), wanted + residual, **tolerance)
    torch.testing.assert_close(Int8Product(weight, None, nn.ReLU())(x), (x @ weight.T).relu(), **tolerance)


@torch.inference_mode()
def test_int8_rounds_each_row_and_each_output_by_itself():
    """An error of at most half a step of each scale: sum |x| s_w / 2 + sum |w| s_x / 2 + n s_x s_w / 4."""
    x, weight = torch.randn(5, INPUTS) * 10.0 ** torch.arange(-2, 3)[:, None], torch.randn(OUTPUTS, INPUTS)
    weight *= 10.0 ** torch.linspace(-2, 2, OUTPUTS)[:, None]
    of_x, of_weight = x.abs().amax(1, keepdim=True) / 127, weight.abs().amax(1) / 127
    sums = x.abs().sum(1, keepdim=True) * of_weight + weight.abs().sum(1) * of_x
    bound = sums / 2 + INPUTS * of_x * of_weight / 4
    error = (Int8Product(weight, None)(x) - x @ weight.T).abs()
    assert bool((error <= 1.001 * bound).all())
    assert float(error.max()) > 0


@torch.inference_mode()
def test_int8_of_a_row_is_the_same_in_every_batch():
    product, x = Int8Product(torch.randn(OUTPUTS, INPUTS), torch.randn(OUTPUTS)), torch.randn(17, INPUTS)
    together = product(x)
    for row in range(17):
        assert torch.equal(product(x[row : row + 1])[0], together[row])


@torch.inference_mode()
def test_int8_of_zeros_and_of_what_is_not_finite():
    product = Int8Product(torch.randn(OUTPUTS, INPUTS), None)
    x = torch.randn(4, INPUTS)
    x[0], x[1, 2], x[2, 3] = 0, torch.nan, torch.inf
    found = product(x)
    assert torch.equal(found[0], torch.zeros(OUTPUTS))
    assert bool((~found[1:3].isfinite()).all())
    torch.testing.assert_close(found[3], product(x[3:])[0], rtol=0, atol=0)
    nothing = Int8Product(torch.zeros(OUTPUTS, INPUTS), None)
    assert torch.equal(nothing(x[3:]), torch.zeros(1, OUTPUTS))


def test_the_product_of_a_dtype():
    assert float_product(torch.float32) is PackedProduct
    assert float_product(torch.float64) is TransposedProduct


def test_this_cpu_multiplies_int8():
    with torch.inference_mode():
        assert int8_works()


def test_activations_that_one_call_computes():
    assert [_post_operation(one) for one in ACTIVATIONS] == [
        ("none", ""), ("relu", ""), ("gelu", "none"), ("gelu", "tanh"), None,
    ]  # fmt: skip
