import pytest
import torch

from qkv.attention.scan import scan


def body(constants, carry, pieces):
    """A leaky sum: something with every kind of input in it."""
    (rate,), (total,), (x, keep) = constants, carry, pieces
    x = torch.where(keep, x, 0)
    output = x.cumsum(-2) + rate * total[..., None, :]
    return (rate * total + x.sum(-2),), output


def whole(rate, total, x, keep, chunk):
    """The same loop under plain autograd."""
    outputs = []
    for start in range(0, x.shape[-2], chunk):
        (total,), out = body((rate,), (total,), (x[..., start : start + chunk, :], keep[..., start : start + chunk, :]))
        outputs.append(out)
    return total, torch.cat(outputs, -2)


@pytest.mark.parametrize("chunk", [1, 3, 11, 50])
def test_equals_autograd_through_the_whole_loop(chunk):
    rate = torch.rand(5, dtype=torch.float64, requires_grad=True)
    total = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    x = torch.randn(2, 11, 5, dtype=torch.float64, requires_grad=True)
    keep = torch.rand(2, 11, 1) > 0.3
    (last,), outputs = scan(body, (rate,), (total,), (x, keep), chunk)
    expected_last, expected = whole(rate, total, x, keep, chunk)
    torch.testing.assert_close(outputs, expected)
    torch.testing.assert_close(last, expected_last)
    weight = torch.randn_like(outputs)
    actual = torch.autograd.grad((outputs * weight).sum() + (last**2).sum(), (rate, total, x))
    wanted = torch.autograd.grad((expected * weight).sum() + (expected_last**2).sum(), (rate, total, x))
    for a, w in zip(actual, wanted, strict=True):
        torch.testing.assert_close(a, w)


def test_gradcheck():
    inputs = [torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in ((3,), (2, 3), (2, 7, 3))]
    keep = torch.rand(2, 7, 1) > 0.3

    def call(rate, total, x):
        (last,), outputs = scan(body, (rate,), (total,), (x, keep), 2)
        return last, outputs

    assert torch.autograd.gradcheck(call, inputs)


def test_keeps_no_more_than_the_carries():
    """What a chunk builds inside is not kept for the backward."""
    kept = []
    x = torch.randn(1, 64, 5, requires_grad=True)
    total, rate = torch.zeros(1, 5), torch.ones(5)
    keep = torch.ones(1, 64, 1, dtype=torch.bool)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        scan(body, (rate,), (total,), (x, keep), 8)
    assert sum(kept) == 5 + 64 * 5 + 64 + 8 * 5


def test_second_derivatives_are_refused():
    x = torch.randn(1, 4, 5, requires_grad=True)
    keep = torch.ones(1, 4, 1, dtype=torch.bool)
    _, outputs = scan(body, (torch.ones(5),), (torch.zeros(1, 5),), (x, keep), 2)
    (gradient,) = torch.autograd.grad((outputs**2).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
