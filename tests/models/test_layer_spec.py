"""Kinds with gates in the setting `attention`: what is built, its initial values, decoding, and errors."""

import re

import pytest
import torch
from torch.nn.functional import softplus

from qkv.attention import parse
from qkv.cost import Span, count_multiplications
from qkv.layers import ChannelGate, ForgetGate, OutputGate, ProjectionConvolution, ShortConvolution, WriteGate
from qkv.layers.layer_spec import PARTS, part_options, read_layer
from qkv.models import Decoder, DecoderConfig, Encoder, EncoderConfig, EncoderDecoder, EncoderDecoderConfig
from qkv.models.fast.fused import can_fuse
from qkv.train import Settings
from qkv.train.optimizer import make_optimizer

SIZES = {"dim": 24, "heads": 3, "hidden_dim": 20, "max_length": 17}
SPECS = [
    "delta+forget+write",
    "delta(chunk=5)+channel(rank=3)+write(largest=2)+output+convolution(width=3)",
    "linear+forget+output",
    "taylor+forget",
    "softmax+forget+output",
    "delta+forget+write,linear+channel,softmax",
]


def decoder(attention, layers=3, positions="none", **options):
    config = DecoderConfig(**SIZES, attention=attention, layers=layers, positions=positions, **options)
    return Decoder(config, 19).double().eval()


@pytest.mark.parametrize(
    ("text", "kind", "parts"),
    [
        ("softmax", "softmax", {}),
        ("delta+forget+write", "delta", {"forget": {}, "write": {}}),
        (" taylor(order=4) + forget ", "taylor(order=4)", {"forget": {}}),
        ("delta+channel(rank=8)+write(largest=2)", "delta", {"channel": {"rank": 8}, "write": {"largest": 2}}),
    ],
)
def test_a_kind_and_its_parts(text, kind, parts):
    layer = read_layer(text)
    assert (layer.kind, layer.parts) == (kind, parts)


def test_options_of_each_part():
    assert {name: part_options(name) for name in PARTS} == {
        "forget": [],
        "channel": ["rank"],
        "write": ["largest"],
        "output": [],
        "convolution": ["width"],
    }


def test_parts_are_built_where_they_are_named():
    model = decoder("delta+channel(rank=5)+write(largest=2)+output+convolution(width=3),linear+forget,softmax")
    first, second, third = (block.attention for block in model.blocks)
    assert type(first.gates.forget) is ChannelGate
    assert first.gates.forget.down.out_features == 5
    assert type(first.gates.write) is WriteGate
    assert first.gates.write.largest == 2
    assert type(first.gates.output) is OutputGate
    assert type(first.projection_convolution) is ProjectionConvolution
    assert first.projection_convolution.width == 3
    assert type(second.gates.forget) is ForgetGate
    assert second.gates.write is None
    assert second.projection_convolution is None
    assert third.gates is None
    one = decoder("linear+forget", convolution=3).blocks[0].attention
    assert type(one.convolution) is ShortConvolution


def test_initial_values_survive_the_building_of_a_model():
    """Rates at a token of zeros: exp(a) in 0..16 times softplus(b) in 0.001..0.1, both different in each head."""
    model = decoder("linear+forget", layers=50)
    gates = [block.attention.gates.forget for block in model.blocks]
    steps = softplus(torch.cat([gate.rate.bias for gate in gates]).detach())
    factors = torch.cat([gate.log_factor for gate in gates]).detach().exp()
    assert len(steps) == len(factors) == 150
    assert 0.00099 < float(steps.min()) < 0.003
    assert 0.03 < float(steps.max()) < 0.1001
    assert 0 < float(factors.min()) < 1
    assert 15 < float(factors.max()) < 16.001


def test_rates_have_no_weight_decay():
    """Factors and biases have one axis; decay would pull all rates towards one value."""
    model = decoder("delta+forget+write")
    decayed, free = make_optimizer(model, Settings(steps=1, weight_decay=0.1)).param_groups
    names = {id(p): name for name, p in model.named_parameters()}
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.1, 0.0)
    in_free = {names[id(p)].partition("gates.")[2] for p in free["params"]}
    assert {"forget.log_factor", "forget.rate.bias"} <= in_free


@pytest.mark.parametrize("text", SPECS)
def test_decoding_equals_the_whole_with_padding_first(text):
    model, tokens = decoder(text), torch.randint(0, 19, (2, 13))
    mask = torch.ones(2, 13, dtype=torch.bool)
    mask[1, :4] = False
    whole = model(tokens, mask)
    state = model.start(tokens[:, :9], mask[:, :9])
    for position in range(9, 13):
        logits, state = model.step(tokens[:, position], state)
        torch.testing.assert_close(logits, whole[:, position], rtol=0, atol=1e-11)
    torch.testing.assert_close(whole[1:, 4:], model(tokens[1:, 4:]), rtol=0, atol=1e-11)


@pytest.mark.parametrize("text", SPECS)
def test_cost_is_what_is_counted(text):
    model, tokens = decoder(text), torch.zeros(2, 13, dtype=torch.long)
    with count_multiplications() as counted, torch.no_grad():
        model(tokens)
    declared = model.cost(Span(2, 13, causal=True))
    assert counted.total == sum(declared.executed.values())
    assert sum(p.numel() for p in model.parameters()) == sum(declared.parameters.values())


def test_a_gated_model_is_not_fused():
    """Fused forms know no gates: such a model runs as it is."""
    sizes = {**SIZES, "encoder_layers": 1, "decoder_layers": 1, "positions": "sinusoidal"}
    found = {
        text: can_fuse(EncoderDecoder(EncoderDecoderConfig(**sizes, attention=text), 11, 13).eval())
        for text in ("softmax", "softmax+output", "softmax/softmax+forget", "softmax/softmax+convolution")
    }
    assert found == {
        "softmax": True,
        "softmax+output": False,
        "softmax/softmax+forget": False,
        "softmax/softmax+convolution": False,
    }


def test_an_encoder_takes_what_is_not_causal():
    model = Encoder(EncoderConfig(**SIZES, attention="linear+output+convolution"), 19, 2).double().eval()
    tokens = torch.randint(0, 19, (2, 13))
    mask = torch.ones(2, 13, dtype=torch.bool)
    mask[1, 9:] = False
    padded, alone = model.encode(tokens, mask=mask)[1:, :9], model.encode(tokens[1:, :9])
    torch.testing.assert_close(padded, alone, rtol=0, atol=1e-11)


def encoder(text):
    return Encoder(EncoderConfig(**SIZES, attention=text), 19, 2)


def translator(**options):
    return EncoderDecoder(EncoderDecoderConfig(**SIZES, **options), 11, 13)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: decoder("delta+forgt"),
            "unknown part of attention='delta+forgt' after +: 'forgt'; did you mean 'forget'? (there are: channel, "
            "convolution, forget, output, write)",
        ),
        (
            lambda: decoder("delta+write(larges=2)"),
            "unknown option of write in attention='delta+write(larges=2)': 'larges'; did you mean 'largest'? (there "
            "are: largest)",
        ),
        (
            lambda: decoder("delta+forget+channel"),
            "attention='delta+forget+channel' has both forget and channel, but a layer has one of them",
        ),
        (
            lambda: decoder("delta+write+write"),
            "attention='delta+write+write' has write twice, but a layer has one of them",
        ),
        (
            lambda: decoder("delta+"),
            "attention='delta+' must be a kind, then parts with their options, such as delta+forget+write(largest=2), "
            "got '' after +",
        ),
        (
            lambda: decoder("delta+write(2)"),
            "attention='delta+write(2)' must be a kind, then parts with their options, such as "
            "delta+forget+write(largest=2), got 'write(2)' after +",
        ),
        (lambda: decoder("delta+write(largest=3)"), "largest must be above 0 and at most 2, got 3"),
        (lambda: decoder("delta+convolution(width=0)"), "width must be at least 1, got 0"),
        (
            lambda: decoder("linear+write"),
            "attention kind 'linear' does not accept WriteGate; leave it out, or use the kind delta",
        ),
        (
            lambda: decoder("linear+forget", positions="alibi"),
            "positions 'alibi' fade the past by distance, ForgetGate by token, and attention kind 'linear' takes one "
            "of them; use the gate with positions 'rope' or without positions",
        ),
        (
            lambda: decoder("delta+convolution", convolution=3),
            "convolution=3 is before the projections of attention 'delta', and its part convolution after them; use "
            "one of them, such as convolution=0",
        ),
        (
            lambda: encoder("linear+forget+output"),
            "attention linear+forget+output has forget, which changes a state of past keys, but an encoder is "
            "bidirectional; leave it out",
        ),
        (
            lambda: encoder("delta"),
            "attention kind 'delta' reads a state of past keys, but an encoder is bidirectional; use another kind, "
            "such as taylor or softmax",
        ),
        (
            lambda: translator(cross="linear+output"),
            "attention 'linear+output' must be a kind with options, such as taylor or taylor(order=4); parts after + "
            "belong to the setting attention of a model",
        ),
        (
            lambda: parse("delta+forget"),
            "attention 'delta+forget' must be a kind with options, such as taylor or taylor(order=4); parts after + "
            "belong to the setting attention of a model",
        ),
    ],
)
def test_what_cannot_be_built_is_refused(build, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        build()
