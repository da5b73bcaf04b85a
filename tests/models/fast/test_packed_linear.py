"""A packed layer is the layer, whatever it is called with."""

import pytest
import torch
from torch import nn

from qkv.models.fast.packed_linear import PackedLinear, is_fast
from qkv.models.fast.products import PackedProduct, TransposedProduct


@pytest.mark.parametrize("shape", [(13,), (1, 13), (2, 3, 13), (0, 13), (2, 0, 13)])
@pytest.mark.parametrize("bias", [True, False])
@torch.inference_mode()
def test_shapes(shape, bias):
    layer, x = nn.Linear(13, 7, bias=bias).double(), torch.randn(shape).double()
    torch.testing.assert_close(PackedLinear(layer, TransposedProduct)(x), layer(x), rtol=0, atol=1e-14)


@torch.inference_mode()
def test_rows_that_are_not_contiguous():
    layer, x = nn.Linear(13, 7), torch.randn(13, 5, 3).transpose(0, 2)
    torch.testing.assert_close(PackedLinear(layer, PackedProduct)(x), layer(x), rtol=0, atol=1e-5)


def test_it_shares_its_weights():
    layer = nn.Linear(13, 7)
    packed = PackedLinear(layer, PackedProduct)
    assert packed.weight is layer.weight
    assert packed.bias is layer.bias
    assert repr(packed) == repr(layer)


def test_gradients_flow():
    layer, x = nn.Linear(13, 7), torch.randn(2, 13)
    packed = PackedLinear(layer, PackedProduct)
    packed(x).sum().backward()
    torch.testing.assert_close(layer.weight.grad, x.sum(0).expand(7, 13))


@torch.inference_mode()
def test_another_dtype_is_the_plain_layer():
    packed = PackedLinear(nn.Linear(13, 7), PackedProduct)
    packed(torch.randn(1, 13))
    packed.double()
    x = torch.randn(2, 13).double()
    torch.testing.assert_close(packed(x), x @ packed.weight.T + packed.bias)


def test_when_packed_weights_are_used():
    x = torch.ones(1)
    assert not is_fast(x)
    with torch.no_grad():
        assert is_fast(x)
        assert not is_fast(x.to("meta"))
        with torch.autocast("cpu"):
            assert not is_fast(x)
