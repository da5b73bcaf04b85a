"""Tensors of several dtypes in one message, and the backward of the exchange."""

import torch

from qkv.attention.parallel.exchange import bind, gather_integers, gather_tensors
from tests.attention.parallel.one_process import one_process


def test_tensors_of_any_dtype_and_shape_travel_together():
    given = (
        torch.randn(3, requires_grad=True),
        torch.tensor([[True], [False]]),
        torch.randn(2, 0),
        torch.randn(2, 5, dtype=torch.float64).mT,
        torch.tensor(7),
        torch.randn(3, dtype=torch.bfloat16),
    )
    with one_process():
        found = gather_tensors(given, None, causal=False)
        earlier = gather_tensors(given, None, causal=True)
    for x, own, before in zip(given, found, earlier, strict=True):
        assert own.dtype == x.dtype
        assert torch.equal(own[0], x)
        assert before.shape == (0, *x.shape)
    assert [x.requires_grad for x in found] == [True, False, True, True, False, True]


def test_gradients_come_back_in_their_dtype():
    x, y = torch.randn(3, dtype=torch.bfloat16, requires_grad=True), torch.randn(2, requires_grad=True)
    with one_process():
        a, b = gather_tensors((x, y), None, causal=False)
        ((2 * a).sum() + (3 * b).sum()).backward()
    assert x.grad.dtype == torch.bfloat16
    assert x.grad.tolist() == [2, 2, 2]
    assert y.grad.tolist() == [3, 3]


def test_a_bound_result_takes_part_in_the_backward():
    x, out = torch.randn(3, requires_grad=True), torch.randn(2, requires_grad=True)
    with one_process():
        bound = bind(out, gather_tensors((x,), None, causal=True))
        bound.sum().backward()
    assert torch.equal(bound, out)
    assert x.grad.tolist() == [0, 0, 0]  # zeros, not None: the backward of the exchange ran
    assert out.grad.tolist() == [1, 1]


def test_integers():
    with one_process():
        assert gather_integers((5, 3), None, torch.device("cpu")) == [(5,), (3,)]
