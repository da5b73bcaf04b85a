"""Gates and document starts in the attention functions of `transformers`."""

import pytest
import torch
from torch import nn

from qkv.attention import Linear
from qkv.interop.huggingface.attention import make_attention_function
from qkv.interop.huggingface.register import register_attention

Q, K, V = torch.randn(2, 6, 5, 4), torch.randn(2, 3, 5, 4), torch.randn(2, 3, 5, 7)
GATE, STARTS = torch.rand(2, 3, 5), torch.tensor([[False, False, True, False, False]] * 2)


@pytest.fixture(scope="module", autouse=True)
def _registered():
    register_attention()


def call(kind="linear", q=Q, mask=None, **options):
    return make_attention_function(kind)(nn.Module().eval(), q, K, V, mask, **options)


def test_gates_and_starts_are_passed_on():
    mask = torch.ones(2, 5, dtype=torch.bool)
    mask[0, 3] = False
    out, weights = call(mask=mask, decay=GATE, starts=STARTS, output_attentions=True)
    modifiers = {"causal": True, "mask": mask, "decay": GATE, "starts": STARTS}
    torch.testing.assert_close(out.transpose(1, 2), Linear()(Q, K, V, **modifiers))
    torch.testing.assert_close(weights, Linear().weights(Q, K, **modifiers))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decay": GATE, "is_causal": False}, "does not support decay with attention that is not causal"),
        ({"starts": STARTS, "q": Q[:, :, 3:]}, "does not support starts with 2 queries after a cache of 5 keys"),
        ({"decay": GATE, "mask": torch.ones(2, 1, 5, 5, dtype=torch.bool)}, "does not support decay with a 4D mask"),
        ({"starts": STARTS, "mask": torch.ones(2, 5, dtype=torch.int64)}, "support starts with packed rows; call qkv"),
        ({"beta": GATE}, "attention kind 'linear' cannot take a beta; use the kind delta"),
    ],
)
def test_bad_input_where_gates_cannot_apply(options, message):
    with pytest.raises(ValueError, match=message):
        call(**options)
