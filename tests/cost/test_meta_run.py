"""Autocast on meta against torch's own autocast of fake CPU tensors, which runs no kernel."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional

from qkv.cost.meta_run import MetaAutocast


class Mixed(nn.Module):
    """Norms, products, a softmax and a convolution, whose results autocast gives different dtypes."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.widen, self.narrow = nn.Linear(6, 10), nn.Linear(10, 6, bias=False)
        self.mix = nn.Conv1d(6, 6, 3)

    def forward(self, x):
        h = self.narrow(functional.gelu(self.widen(self.norm(x))))
        weights = torch.matmul(h, x.transpose(1, 2)).float().softmax(-1)
        return self.mix((torch.bmm(weights, x) + x).transpose(1, 2))


def saved_forms(model, x):
    forms = []
    weights = {p.shape for p in model.parameters()}
    with saved_tensors_hooks(lambda t: forms.append((tuple(t.shape), t.dtype)) or t, lambda t: t):
        out = model(x)
    return out.dtype, sorted((form for form in forms if torch.Size(form[0]) not in weights), key=str)


def test_saved_tensors_are_those_of_torch():
    with FakeTensorMode(), torch.autocast("cpu", torch.bfloat16):
        expected = saved_forms(Mixed(), torch.empty(2, 7, 6, requires_grad=True))
    with torch.device("meta"), MetaAutocast():
        assert saved_forms(Mixed(), torch.empty(2, 7, 6, requires_grad=True)) == expected
    assert expected[0] == torch.bfloat16


def test_weights_are_cast_once():
    layer = nn.Linear(3, 5, device="meta")
    x = torch.empty(2, 3, device="meta")
    with MetaAutocast() as autocast:
        layer(x)
        layer(x)
    assert [(tuple(copy.shape), copy.dtype) for copy in autocast.copies()] == [
        ((5, 3), torch.bfloat16),
        ((5,), torch.bfloat16),
    ]


def test_a_region_without_autocast():
    layer, x = nn.Linear(3, 5, device="meta"), torch.empty(2, 3, device="meta")
    with MetaAutocast() as autocast:
        autocast.enabled = False
        assert layer(x).dtype == torch.float32
        autocast.enabled = True
        assert layer(x).dtype == torch.bfloat16


@pytest.mark.parametrize("x", [torch.ones(2, 3), torch.ones(2, 3, dtype=torch.float64, device="meta")])
def test_real_and_double_tensors_stay_as_they_are(x):
    weight = torch.ones(5, 3, dtype=x.dtype, device=x.device)
    with MetaAutocast():
        assert functional.linear(x, weight).dtype == x.dtype


def test_dropout_keeps_a_mask_of_bytes():
    held = []
    x = torch.empty(2, 7, device="meta", requires_grad=True)
    with MetaAutocast(), saved_tensors_hooks(lambda t: held.append(t) or t, lambda t: t):
        functional.dropout(x, 0.5, training=True)
        assert functional.dropout(x, 0.5, training=False) is x
    assert [(tuple(t.shape), t.dtype) for t in held] == [((2, 7), torch.bool)]
