"""Remembered meta kernels give what the kernels give."""

from contextlib import nullcontext

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from qkv.cost import Input, meta_kernels
from qkv.cost.memory import inference_bytes, saved_bytes
from qkv.cost.meta_kernels import RememberedKernels
from qkv.cost.meta_run import ModuleCall, count_backward, count_forward, module_mode
from qkv.models import Decoder, DecoderConfig


class Ran(TorchDispatchMode):
    """Names of the kernels that really run."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func._schema.name.removeprefix("aten::"))
        return func(*args, **(kwargs or {}))


def empty(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


def layout(x):
    return x.shape, x.stride(), x.dtype, x.untyped_storage().nbytes()


@pytest.fixture(autouse=True)
def _nothing_known():
    meta_kernels._known_results.clear()


def test_an_equal_call_runs_no_kernel_and_has_memory_of_its_own():
    x, y = empty(3, 5), empty(5, 7)
    with Ran() as ran, RememberedKernels():
        first, second = x @ y, x @ y
    assert ran.names.count("mm") == 1
    assert layout(first) == layout(second)
    assert first.untyped_storage()._cdata != second.untyped_storage()._cdata


@pytest.mark.parametrize(
    "calls",
    [
        [lambda: empty(3, 5) + 1, lambda: empty(3, 5) + empty(5)],
        [lambda: empty(3, dtype=torch.int64) + 1, lambda: empty(3, dtype=torch.int64) + 1.5],
        [lambda: empty(3, 5).exp(), lambda: torch.exp(empty(5, 3).T), lambda: empty(3, 5).double().exp()],
        [lambda: empty(3, 5).sum(0), lambda: empty(3, 5).sum(1), lambda: empty(3, 5).sum(1, keepdim=True)],
        [lambda: empty(3, 5).topk(2, 0)[1], lambda: empty(3, 5).topk(2, 1)[1]],
        [lambda: torch.cat([empty(3), empty(4)]), lambda: torch.cat([empty(3), empty(5)])],
    ],
)
def test_calls_that_differ_are_not_taken_for_each_other(calls):
    expected = [layout(call()) for call in calls]
    with RememberedKernels():
        assert [layout(call()) for call in calls * 2] == expected * 2


def test_views_and_writes_go_to_the_same_memory():
    x = empty(3, 5)
    with Ran() as ran, RememberedKernels():
        found = [x.view(15), x.view(15), x.add_(1), x.add_(1)]
    assert {one.untyped_storage()._cdata for one in found} == {x.untyped_storage()._cdata}
    assert ran.names == ["view", "view", "add_", "add_"]


def test_the_number_of_results_is_limited(monkeypatch):
    monkeypatch.setattr(meta_kernels, "MAX_KNOWN_RESULTS", 10)
    with RememberedKernels():
        for n in range(1, 30):
            empty(n).exp()
    assert 1 <= len(meta_kernels._known_results) <= 10


def test_counts_and_bytes_are_those_of_the_kernels(monkeypatch):
    model = Decoder(DecoderConfig(dim=24, heads=3, hidden_dim=5, layers=3, convolution=3), 11)
    call = ModuleCall(model, (Input.parse("int[2,n]"),))

    def everything():
        with module_mode(model, training=False):
            counted = count_forward(call, {"n": 19})
            backward = count_backward(call, {"n": 19}, input_gradients=False)
            bytes_ = saved_bytes(call, {"n": 19}), inference_bytes(call, {"n": 19})
        return counted.by_module, counted.by_op_class, counted.dispatched, backward, bytes_

    remembered = everything()
    monkeypatch.setattr(ModuleCall, "kernels", lambda _: nullcontext())
    assert everything() == remembered
