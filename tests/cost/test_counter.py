import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from qkv.attention import Softmax, Taylor
from qkv.cost import Shape, UncountedError, count_multiplications


def test_products_by_hand():
    a, b, x = torch.randn(3, 5), torch.randn(5, 7), torch.randn(5)
    with count_multiplications() as counted:
        a @ b
        a @ x
        torch.einsum("ij,jk->ik", a, b)
        x.dot(x)
        torch.addmv(torch.zeros(3), a, x)
        functional.conv1d(torch.randn(1, 2, 11), torch.randn(4, 2, 3))
    assert counted.total == 105 + 15 + 105 + 5 + 15 + 9 * 4 * 2 * 3


def test_agrees_with_torchs_own_counter():
    layer = nn.TransformerEncoderLayer(16, 4, 37, batch_first=True)
    x = torch.randn(2, 7, 16, requires_grad=True)
    with FlopCounterMode(display=False) as flops:
        functional.linear(x, layer.linear1.weight).square().sum().backward()
    with count_multiplications() as counted:
        functional.linear(x, layer.linear1.weight).square().sum().backward()
    assert 2 * counted.total == flops.get_total_flops()


def test_attention_worked_by_hand():
    """36-wide keys, 25-wide values, 75 tokens: 61 n^2 multiplications in the two products."""
    shape = Shape(1, 1, 75, 75, 36, 25)
    assert sum(Softmax().cost(shape).needed.values()) == 61 * 75**2
    assert sum(Softmax(backend="reference").cost(shape).executed.values()) == 61 * 75**2


def test_doubling_the_length_quadruples_softmax_and_doubles_taylor():
    short, long = (Shape(1, 8, n, n, 16, 64) for n in (4096, 8192))
    assert sum(Softmax().cost(long).needed.values()) == 4 * sum(Softmax().cost(short).needed.values())
    assert sum(Taylor().cost(long).needed.values()) == 2 * sum(Taylor().cost(short).needed.values())


def test_what_has_no_formula_is_an_error_not_a_zero():
    with (
        pytest.raises(UncountedError, match="no multiplication formula for aten._cdist_forward"),
        count_multiplications(),
    ):
        torch.cdist(torch.randn(30, 5), torch.randn(30, 5), compute_mode="donot_use_mm_for_euclid_dist")
