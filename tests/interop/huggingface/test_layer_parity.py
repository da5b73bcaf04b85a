"""The gated delta layer of Qwen3-Next, by transformers and as our MultiHead: outputs, gradients, padding, decoding."""

import pytest
import torch
from torch import nn
from transformers.cache_utils import DynamicCache

from qkv.attention import Delta
from qkv.layers import ForgetGate, Gates, Heads, MultiHead, OutputGate, ProjectionConvolution, WriteGate
from tests.interop.huggingface.recurrent_models import qwen3_next

TIME = 71
"""More than a chunk of 64."""


def heads_of(theirs, rows, sizes):
    """Return the rows of a projection whose channels are grouped by head, part by part."""
    return [part.flatten(0, 1) for part in rows.unflatten(0, (theirs.num_k_heads, -1)).split(sizes, 1)]


def convert(theirs):
    """Build the same layer of our parts; their query and key heads are half of the value heads, so ours repeat them."""
    key_dim, value_dim, dim = theirs.head_k_dim, theirs.head_v_dim, theirs.hidden_size
    count, per_key = theirs.num_v_heads, theirs.num_v_heads // theirs.num_k_heads
    ours = MultiHead(
        dim,
        Heads(count, key_dim=key_dim, value_dim=value_dim),
        Delta(),
        convolution=ProjectionConvolution(count * (2 * key_dim + value_dim), theirs.conv_kernel_size),
        output_norm=nn.RMSNorm(value_dim, eps=theirs.layer_norm_epsilon),
        gates=Gates(
            forget=ForgetGate(dim, count), write=WriteGate(dim, count), output=OutputGate(dim, count, value_dim)
        ),
        bias=False,
    )

    def repeat(rows):
        return rows.unflatten(0, (-1, key_dim)).repeat_interleave(per_key, 0).flatten(0, 1)

    sizes = [key_dim, key_dim, per_key * value_dim, per_key * value_dim]
    query, key, value, gate = heads_of(theirs, theirs.in_proj_qkvz.weight, sizes)
    write, forget = heads_of(theirs, theirs.in_proj_ba.weight, [per_key, per_key])
    query_taps, key_taps, value_taps = theirs.conv1d.weight.split([theirs.key_dim, theirs.key_dim, theirs.value_dim])
    weights = {
        "query.weight": repeat(query),
        "key.weight": repeat(key),
        "value.weight": value,
        "output.weight": theirs.out_proj.weight,
        "projection_convolution.mix.taps": torch.cat((repeat(query_taps), repeat(key_taps), value_taps)),
        "output_norm.weight": theirs.norm.weight,
        "gates.forget.rate.weight": forget,
        "gates.forget.rate.bias": theirs.dt_bias,
        "gates.forget.log_factor": theirs.A_log,
        "gates.write.strength.weight": write,
        "gates.output.factor.weight": gate,
    }
    ours.load_state_dict({name: x.detach() for name, x in weights.items()})
    return ours


def near(actual, expected, bound=1e-5):
    """Equal to 1e-5 of the largest value."""
    assert actual.shape == expected.shape
    assert float((actual - expected).detach().abs().max()) <= bound * float(expected.detach().abs().max())


@pytest.fixture(scope="module")
def layers():
    model = qwen3_next()
    return model.config, model.model.layers[0].linear_attn, convert(model.model.layers[0].linear_attn)


def test_outputs_and_gradients(layers):
    _, theirs, ours = layers
    x = torch.randn(2, TIME, 24, requires_grad=True)
    expected, found = theirs(x), ours(x, causal=True)
    near(found, expected)
    slopes = torch.linspace(-1, 2, found.numel()).view_as(found)

    def gradients(layer, out, *names):
        parameters = dict(layer.named_parameters())
        return torch.autograd.grad((out * slopes).sum(), [x, *(parameters[name] for name in names)], retain_graph=True)

    for actual, wanted in zip(
        gradients(
            ours, found, "output.weight", "gates.forget.rate.bias", "gates.forget.log_factor", "output_norm.weight"
        ),
        gradients(theirs, expected, "out_proj.weight", "dt_bias", "A_log", "norm.weight"),
        strict=True,
    ):
        near(actual, wanted, 1e-4)  # those of the rates are float32 sums of large terms of both signs


@pytest.mark.parametrize("left", [True, False])
def test_padding(layers, left):
    _, theirs, ours = layers
    x, mask = torch.randn(2, TIME, 24), torch.ones(2, TIME, dtype=torch.bool)
    mask[1, slice(0, 9) if left else slice(-9, None)] = False
    near(ours(x, causal=True, mask=mask)[mask], theirs(x, attention_mask=mask.long())[mask])


@torch.no_grad()
def test_prefill_and_decoding(layers):
    config, theirs, ours = layers
    x, cache, state = torch.randn(2, TIME, 24), DynamicCache(config=config), ours.start(2)
    for first, end in ((0, TIME - 3), (TIME - 3, TIME - 2), (TIME - 2, TIME - 1), (TIME - 1, TIME)):
        out, state = ours.step(x[:, first:end], state)
        near(out, theirs(x[:, first:end], cache_params=cache))
