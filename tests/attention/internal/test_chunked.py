import pytest
import torch
from torch.utils.checkpoint import checkpoint

from qkv.attention import parse
from qkv.attention.internal.chunked import chunked_scan
from qkv.attention.internal.layout import call_shape
from qkv.attention.internal.validation import Modifiers


def body(constants, carry, pieces):
    """A leaky sum, which uses every kind of input."""
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
    (last,), outputs = chunked_scan(body, (rate,), (total,), (x, keep), chunk)
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
        (last,), outputs = chunked_scan(body, (rate,), (total,), (x, keep), 2)
        return last, outputs

    assert torch.autograd.gradcheck(call, inputs)


def test_saves_only_inputs_and_checkpoints():
    """Intermediates of a chunk are not saved for the backward."""
    kept = []
    x = torch.randn(1, 64, 5, requires_grad=True)
    total, rate = torch.zeros(1, 5), torch.ones(5)
    keep = torch.ones(1, 64, 1, dtype=torch.bool)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        chunked_scan(body, (rate,), (total,), (x, keep), 8)
    assert sum(kept) == 5 + 64 * 5 + 64 + 8 * 5


def test_second_derivatives_raise():
    x = torch.randn(1, 4, 5, requires_grad=True)
    keep = torch.ones(1, 4, 1, dtype=torch.bool)
    _, outputs = chunked_scan(body, (torch.ones(5),), (torch.zeros(1, 5),), (x, keep), 2)
    for loss in ((outputs**2).sum(), outputs.sum()):  # the incoming gradient requires grad, or is a constant
        with pytest.raises(RuntimeError, match=r"second derivatives .*backend=\"reference\""):
            torch.autograd.grad(loss, x, create_graph=True, retain_graph=True)


@pytest.mark.parametrize("reentrant", [False, True])
def test_works_inside_torch_checkpoint(reentrant):
    x = torch.randn(1, 4, 5, requires_grad=True)
    keep = torch.ones(1, 4, 1, dtype=torch.bool)

    def run(x):
        return chunked_scan(body, (torch.ones(5),), (torch.zeros(1, 5),), (x, keep), 2)[1]

    expected = torch.autograd.grad((run(x) ** 2).sum(), x)[0]
    (checkpoint(run, x, use_reentrant=reentrant) ** 2).sum().backward()
    assert torch.equal(x.grad, expected)


@pytest.mark.parametrize("kind", ["linear", "elu", "taylor"])
@pytest.mark.parametrize("causal", [False, True])
def test_torch_func_transforms(kind, causal):
    """torch.func.grad, also per example by vmap, at a length where the chunked backend is chosen."""
    q, k, v = (torch.randn(3, 2, 300, 3, dtype=torch.float64) for _ in range(3))
    fast, law = parse(kind), parse(f"{kind}(backend='reference')")
    shape = call_shape(q, k, v, Modifiers(causal))
    assert fast._choose_torch_backend(shape) == "chunked"

    def loss(mechanism, q, k, v):
        return (mechanism(q[None], k[None], v[None], causal=causal) ** 2).sum()

    every = (1, 2, 3)
    found = torch.func.vmap(torch.func.grad(loss, every), in_dims=(None, 0, 0, 0))(fast, q, k, v)
    for row, example in enumerate(zip(q, k, v, strict=True)):
        leaves = [x.clone().requires_grad_() for x in example]
        expected = torch.autograd.grad(loss(law, *leaves), leaves)
        torch.testing.assert_close(tuple(x[row] for x in found), expected, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(torch.func.grad(loss, every)(fast, *example), expected, rtol=1e-9, atol=1e-9)


def multiply(constants, carry, pieces):
    """A product that autocast would lower to float16, added to a carry that it would not."""
    (weight,), (total,), (x,) = constants, carry, pieces
    product = torch.bmm(x, weight)
    return (torch.baddbmm(total, x.transpose(1, 2), product),), product


@pytest.mark.parametrize("inside", [False, True])
def test_autocast_changes_neither_forward_nor_backward(inside):
    """The backward of a training step runs outside the autocast region of its forward."""
    weight = torch.randn(2, 5, 3, requires_grad=True)
    total = torch.randn(2, 5, 3, requires_grad=True)
    x = torch.randn(2, 11, 5, requires_grad=True)
    (expected_last,), expected = multiply((weight,), (total,), (x,))
    wanted = torch.autograd.grad((expected**2).sum() + expected_last.sum(), (weight, total, x))
    with torch.autocast("cpu", torch.float16):
        (last,), outputs = chunked_scan(multiply, (weight,), (total,), (x,), 4)
        with torch.autocast("cpu", torch.float16, enabled=inside):
            actual = torch.autograd.grad((outputs**2).sum() + last.sum(), (weight, total, x))
    torch.testing.assert_close((last, outputs, *actual), (expected_last, expected, *wanted), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["linear", "elu", "taylor"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("backend", ["reference", "chunked"])
def test_autocast_keeps_sums_of_features_in_float32(kind, causal, backend):
    """In float16 each product would be off by about 1e-3."""
    q, k, v = (torch.randn(2, 3, 7, 5, requires_grad=True) for _ in range(3))
    mechanism = parse(f"{kind}(backend={backend!r},chunk=3)")
    weighted = mechanism.weights(q.double(), k.double(), causal=causal) @ v.double()
    wanted = torch.autograd.grad(weighted.sum(), (q, k, v))
    with torch.autocast("cpu", torch.float16):
        out = mechanism(q, k, v, causal=causal)
        weights = mechanism.weights(q, k, causal=causal)
    found = torch.autograd.grad(out.sum(), (q, k, v))
    torch.testing.assert_close((out, *found), (weighted.float(), *wanted), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(weights @ v, weighted.float(), rtol=1e-4, atol=1e-4)
