"""Operators of `custom_op`: values, gradients, dispatch modes and torch.compile."""

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from qkv.attention.triton.custom_op import define, register_backward


def _powers(x: Tensor, weight: Tensor | None, exponent: int) -> tuple[Tensor, Tensor]:
    """weight x^exponent, and x^exponent."""
    power = x**exponent
    return power * (1.0 if weight is None else weight), power.clone()


def _fake(x, weight, exponent):
    return torch.empty_like(x), torch.empty_like(x)


def _save(ctx, arguments, results):
    x, weight, ctx.exponent = arguments
    ctx.save_for_backward(x, weight, results[1])


def _backward(ctx, g, g_power):
    x, weight, power = ctx.saved_tensors
    slope = ctx.exponent * x ** (ctx.exponent - 1)
    return slope * (g * weight + g_power), g * power, None


powers = define("powers_of_a_test", _powers, _fake)
register_backward(powers, _save, _backward)
X, WEIGHT = (torch.tensor(values, dtype=torch.float64) for values in ([2.0, -3.0], [5.0, 7.0]))


@pytest.fixture
def inputs():
    return X.clone().requires_grad_(), WEIGHT.clone().requires_grad_()


def test_values_and_gradients_by_hand(inputs):
    weighed, power = powers(*inputs, 3)
    assert weighed.tolist() == [40.0, -189.0]
    found = torch.autograd.grad([weighed, power], inputs, [torch.tensor([1.0, 10.0]).double(), torch.ones(2).double()])
    # 3 x^2 (g weight + 1), g x^3
    assert [x.tolist() for x in found] == [[12 * 6.0, 27 * 71.0], [8.0, -270.0]]


def test_double_backward_raises_even_for_a_sum(inputs):
    """torch's own `once_differentiable` lets this pass, since the gradient that comes in is a constant."""
    with pytest.raises(RuntimeError, match="second derivatives"):
        torch.autograd.grad(powers(*inputs, 3)[0].sum(), inputs, create_graph=True)


def test_an_argument_that_needs_none_gets_none(inputs):
    weighed, _ = powers(inputs[0], WEIGHT, 2)
    weighed.sum().backward()
    assert inputs[0].grad.tolist() == [20.0, -42.0]


@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_where_no_gradient_is_kept_none_is(inputs, without):
    with without():
        assert not powers(*inputs, 2)[0].requires_grad
    assert not powers(X, None, 2)[0].requires_grad


def test_torch_finds_it_in_order(inputs):
    torch.library.opcheck(powers, (*inputs, 3))


def test_a_mode_sees_one_call(inputs):
    seen = []

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    with Watching():
        powers(*inputs, 3)
    seen.remove("aten.detach.default")  # of the result that is kept
    assert seen == ["qkv.powers_of_a_test.default"]


def test_compiled_as_one_graph_it_is_the_same(inputs):
    compiled = torch.compile(lambda x, w: powers(x, w, 3)[0].sum(), backend="aot_eager", fullgraph=True)
    found = torch.autograd.grad(compiled(*inputs), inputs)
    expected = torch.autograd.grad(powers(*inputs, 3)[0].sum(), inputs)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
