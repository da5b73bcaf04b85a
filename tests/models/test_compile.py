"""Layers and models are one graph for all lengths, with the values and gradients of eager mode; so is decoding."""

import pytest
import torch
from torch._dynamo.utils import counters

from qkv.models import Decoder, DecoderConfig, Encoder, EncoderConfig
from tests.layers.test_multi_head import COMBINATIONS

TOKENS = 11


def compile_anew(function):
    torch.compiler.reset()
    counters.clear()
    return torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=True)


def assert_one_graph(model, inputs, call):
    """Compare outputs and gradients of the parameters for each input; the compiler must run once."""
    compiled, parameters = compile_anew(model), list(model.parameters())
    for x in inputs:
        found, expected = call(compiled, x), call(model, x)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        arriving = torch.randn_like(found)
        gradients = [
            torch.autograd.grad(out, parameters, arriving, allow_unused=True, materialize_grads=True)
            for out in (found, expected)
        ]
        torch.testing.assert_close(*gradients, rtol=0, atol=1e-10)
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", COMBINATIONS)
def test_heads_with_positions(name):
    inputs = [torch.randn(2, length, 12, dtype=torch.float64) for length in (5, 33, 130)]
    assert_one_graph(COMBINATIONS[name]().double(), inputs, lambda heads, x: heads(x, causal=True))


def small(family, config, **settings):
    torch.manual_seed(0)
    sizes = {"dim": 12, "heads": 3, "hidden_dim": 16, "dropout": 0.0, "max_length": 300}
    return family(config(**{**sizes, **settings}), TOKENS).double()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attention", "positions"),
    [
        ("softmax", "rope"),
        ("linear,softmax", "rope"),
        ("taylor,delta", "alibi"),
        ("softmax(window=20)", "t5"),
        ("elu", "sinusoidal"),
        ("additive", "learned"),
    ],
)
def test_a_decoder(attention, positions):
    model = small(Decoder, DecoderConfig, attention=attention, positions=positions)
    inputs = [torch.randint(0, TOKENS, (2, length)) for length in (33, 130, 257)]
    assert_one_graph(model, inputs, lambda model, x: model(x))


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["softmax", "linear,elu"])
def test_an_encoder(attention):
    model = small(Encoder, EncoderConfig, attention=attention)
    inputs = [torch.randint(0, TOKENS, (2, length)) for length in (33, 130, 257)]
    assert_one_graph(model, inputs, lambda model, x: model(x)[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attention", "positions"), [("softmax", "rope"), ("taylor,delta", "alibi"), ("additive", "t5")]
)
def test_decoding_compiles_for_all_positions(attention, positions):
    """Torch may compile the second step again, whose state comes from a graph, and then no more.

    The prompt has 5 tokens, a number that no other size has: torch takes equal sizes for one.
    """
    model = small(Decoder, DecoderConfig, attention=attention, positions=positions)
    tokens, step, graphs = torch.randint(0, TOKENS, (2, 40)), compile_anew(model.step), []
    with torch.no_grad():
        state = other = model.start(tokens[:, :5], None)
        for place in range(5, 40):
            found, state = step(tokens[:, place].clone(), state)
            expected, other = model.step(tokens[:, place], other)
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
            graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[1] == graphs[-1] <= 2
