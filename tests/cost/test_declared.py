"""Declared = counted at 200 random odd sizes for every mechanism, layer and model; derived where it can be."""

import random
from functools import partial

import pytest
import torch

from qkv.attention import kinds
from qkv.cost import Input, Shape, Span, count_multiplications, evaluate
from qkv.cost.meta_run import ModuleCall
from qkv.cost.symbolic import derive_formulas
from qkv.layers import (
    ChannelGate,
    DecoderBlock,
    EncoderBlock,
    FeedForward,
    ForgetGate,
    Gates,
    Heads,
    MultiHead,
    OutputGate,
    PostNorm,
    PreNorm,
    ProjectionConvolution,
    ShortConvolution,
    WriteGate,
)
from qkv.models import Detector, families, family
from qkv.positions import Sizes, schemes
from tests.contract.mechanisms import MECHANISMS

DRAWS = [6, pytest.param(200, marks=pytest.mark.slow)]
NOT_DERIVED = {
    "delta": "splits the sequence into chunks",
    "elu": "branches on the length",
    "linear": "branches on the length",
    "taylor": "branches on the length",
    "softmax, window 4": "splits the sequence into blocks",
}
"""Mechanism -> reason. Softmax is derived only if value_dim equals key_dim: torch's padding fixes the length."""


def odd(draw, most):
    return draw.randrange(1, most, 2)


def count(call, *inputs, **options):
    with count_multiplications() as counted, torch.no_grad():
        call(*inputs, **options)
    return counted.total


@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("name", MECHANISMS)
def test_mechanisms(name, draws):
    draw = random.Random(name)
    for _ in range(draws):
        key_dim, causal = odd(draw, 24), draw.random() < 0.5
        key_heads, groups, queries = odd(draw, 6), draw.choice((1, 1, 3)), odd(draw, 60)
        keys = queries if causal else odd(draw, 60)
        causal = causal or "window" in name or MECHANISMS[name](key_dim).causal_only
        keys = queries if causal else keys
        shape = Shape(odd(draw, 5), key_heads * groups, queries, keys, key_dim, odd(draw, 24), key_heads, causal=causal)
        mechanism = MECHANISMS[name](key_dim).to("meta")
        q = torch.empty(shape.batch, shape.heads, queries, key_dim, device="meta")
        k = torch.empty(shape.batch, key_heads, keys, key_dim, device="meta")
        v = torch.empty(shape.batch, key_heads, keys, shape.value_dim, device="meta")
        declared = mechanism.cost(shape)
        assert count(mechanism, q, k, v, causal=causal) == sum(declared.executed.values()), shape
        assert sum(p.numel() for p in mechanism.parameters()) == sum(declared.parameters.values())


def heads_of(draw, kind, scheme, *, causal=True):
    """A multi-head layer of random sizes."""
    count, groups = odd(draw, 5), draw.choice((1, 3))
    key_dim, dim = 2 * odd(draw, 9), odd(draw, 40)
    sizes = Sizes(dim, count * groups, key_dim, 64, bidirectional=False)
    positions = None if scheme is None else schemes[scheme].from_sizes(sizes)
    shape = Heads(count * groups, count if scheme != "alibi" else None, key_dim, odd(draw, 20))
    heads, key_heads = shape.count, shape.key_heads or shape.count
    after = ProjectionConvolution(heads * key_dim + key_heads * (key_dim + shape.value_dim), odd(draw, 6))
    convolution = draw.choice((None, ShortConvolution(dim, odd(draw, 6)), after))
    norm = draw.choice((None, torch.nn.RMSNorm(shape.value_dim)))
    mechanism = kinds[kind].example(key_dim)
    parts = {"convolution": convolution, "output_norm": norm, "gates": gates_of(draw, mechanism, scheme, dim, shape)}
    if not causal:
        parts["gates"] = Gates(output=parts["gates"].output)
    return dim, MultiHead(dim, shape, mechanism, positions, **parts)


def gates_of(draw, mechanism, scheme, dim, shape):
    """Random gates that the kind takes together with this position scheme."""
    count = draw.choice((shape.count, shape.key_heads or shape.count))
    forget = [None]
    if "gate" in mechanism.accepts and (scheme != "alibi" or "bias" in mechanism.accepts):
        forget.append(ForgetGate(dim, count))
    if "channel_gate" in mechanism.accepts and scheme is None:
        forget.append(ChannelGate(dim, count, shape.key_dim, rank=odd(draw, 8)))
    write = [None, WriteGate(dim, count)] if "beta" in mechanism.accepts else [None]
    output = draw.choice((None, OutputGate(dim, shape.count, shape.value_dim)))
    return Gates(forget=draw.choice(forget), write=draw.choice(write), output=output)


PAIRS = [
    (kind, scheme)
    for kind in kinds
    for scheme in (None, *schemes)
    if scheme is None or ("input" not in schemes[scheme].gives and schemes[scheme].serves(kinds[kind].accepts))
]


@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize(("kind", "scheme"), PAIRS)
def test_multi_head_layers(kind, scheme, draws):
    draw = random.Random(f"{kind} {scheme}")
    for _ in range(draws):
        dim, layer = heads_of(draw, kind, scheme)
        layer, span = layer.to("meta"), Span(odd(draw, 5), odd(draw, 40), causal=True)
        x = torch.empty(span.batch, span.time, dim, device="meta")
        declared = layer.cost(span)
        assert count(layer, x, causal=True) == sum(declared.executed.values())
        assert sum(p.numel() for p in layer.parameters()) == sum(declared.parameters.values())


@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("block", [EncoderBlock, DecoderBlock])
@pytest.mark.parametrize("residual", [PreNorm, PostNorm])
def test_blocks_with_and_without_another_sequence(block, residual, draws):
    draw = random.Random(f"{block} {residual}")
    served = [kind for kind in kinds if block is DecoderBlock or not kinds[kind].causal_only]
    for _ in range(draws):
        dim, attention = heads_of(draw, draw.choice(served), None, causal=block is DecoderBlock)
        cross = (
            MultiHead(dim, Heads(3, 1, 5, 7), kinds["softmax"]())
            if block is DecoderBlock and draw.random() < 0.5
            else None
        )
        parts = {} if block is EncoderBlock else {"cross": cross}
        layer = block(attention, FeedForward(dim, odd(draw, 30)), partial(residual, dim), **parts).to("meta")
        span = Span(odd(draw, 5), odd(draw, 30), context=None if cross is None else odd(draw, 30))
        x = torch.empty(span.batch, span.time, dim, device="meta")
        other = torch.empty(span.batch, span.context or 0, dim, device="meta")
        remembered = 0 if cross is None else count(layer.project_context, other)
        context = {} if cross is None else {"context": layer.project_context(other)}
        declared = layer.cost(span)
        assert remembered + count(layer, x, **context) == sum(declared.executed.values())
        assert sum(p.numel() for p in layer.parameters()) == sum(declared.parameters.values())


OF_TOKENS = ("decoder", "encoder", "encoder_decoder", "recurrent")
ONE_SEQUENCE = ("decoder", "encoder")


def settings(draw, name):
    """A random configuration of a family, odd wherever it may be."""
    if name == "recurrent":
        cell, attention = draw.choice(("rnn", "gru", "lstm")), draw.choice(("none", "additive", "softmax"))
        return {"dim": 2 * odd(draw, 10), "layers": draw.choice((1, 2)), "cell": cell, "attention": attention}
    heads = odd(draw, 4)
    kind = draw.choice(("softmax", "additive", "linear", "elu", "taylor", "taylor(order=4)", "softmax(window=5)"))
    bidirectional = name != "decoder" and "window" in kind
    kind = "softmax" if bidirectional else kind
    fitting = [s for s in schemes if schemes[s].serves(kinds[kind.split("(")[0]].accepts) and s != "alibi"]
    found = {
        "dim": 2 * heads * odd(draw, 8),
        "heads": heads,
        "hidden_dim": draw.choice((0, odd(draw, 30))),
        "attention": kind,
        "positions": draw.choice(("none", *fitting)),
    }
    if name == "encoder":
        return found | {"norm": draw.choice(("after", "before")), "pretraining": draw.random() < 0.7}
    found["convolution"] = draw.choice((0, 3))
    return found | ({"tied": draw.random() < 0.5} if name == "decoder" else {"decoder_layers": draw.choice((1, 2))})


OF_EXAMPLES = {
    "perceptron": lambda draw: ({}, (odd(draw, 30), 2)),
    "network": lambda draw: (
        {"layers": draw.choice((0, 1, 3)), "hidden_dim": odd(draw, 30), "normalization": draw.choice((None, "layer"))},
        (odd(draw, 9), odd(draw, 9), odd(draw, 9) + 2),
    ),
    "convolutional": lambda draw: (
        {"downsample": draw.choice(("pool", "stride")), "padding": draw.choice((0, 1, 2))},
        (odd(draw, 5), 14 + odd(draw, 20), 14 + odd(draw, 20), odd(draw, 9)),
    ),
}
"""Family -> a random configuration, and sizes of an example with the number of classes last."""


@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("name", OF_EXAMPLES)
def test_models_of_examples(name, draws):
    draw = random.Random(name)
    for _ in range(draws):
        values, sizes = OF_EXAMPLES[name](draw)
        with torch.device("meta"):
            model = family(name).model.from_config(family(name).configure(values), *sizes).eval()
        batch = odd(draw, 7)
        declared = model.cost(Span(batch, 1))
        assert count(model, torch.empty(batch, *sizes[:-1], device="meta")) == sum(declared.executed.values()), values
        assert sum(p.numel() for p in model.parameters()) == sum(declared.parameters.values()), values


def test_no_family_is_left_out():
    """Detectors declare no cost: theirs is counted, and tests/models/detectors/test_cost.py has it by hand."""
    detectors = {name for name in families if issubclass(families[name], Detector)}
    assert {*families} == {*OF_EXAMPLES, *OF_TOKENS, "word_vectors", *detectors}
    assert detectors == {"rcnn", "fast", "faster", "detr"}


@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("objective", ["skip_gram", "cbow"])
def test_word_vectors(objective, draws):
    draw = random.Random(objective)
    for _ in range(draws):
        values, words = {"dim": odd(draw, 30), "objective": objective}, odd(draw, 40)
        with torch.device("meta"):
            model = family("word_vectors").build(family("word_vectors").configure(values), words)
        span = Span(odd(draw, 5), odd(draw, 20), context=odd(draw, 20))
        given = [torch.zeros(span.batch, n, dtype=torch.int64, device="meta") for n in (span.context, span.time)]
        declared = model.cost(span)
        assert count(model, *given) == sum(declared.executed.values()), values
        assert (
            sum(p.numel() for p in model.parameters())
            == sum(declared.parameters.values())
            == 2 * words * model.config.dim
        )


@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("name", OF_TOKENS)
def test_models(name, draws):
    draw = random.Random(name)
    for _ in range(draws):
        chosen, values = family(name), settings(draw, name)
        sizes = [odd(draw, 20) + 4 for _ in range(1 if name == "decoder" else 2)]
        device = "cpu" if name == "recurrent" else "meta"  # packed sequences have to know their lengths
        with torch.device(device):
            model = chosen.model(chosen.configure(values), *sizes).eval()
        span = Span(odd(draw, 5), odd(draw, 20), context=None if name in ONE_SEQUENCE else odd(draw, 20))
        lengths = [span.time] if span.context is None else [span.context, span.time]
        tokens = [torch.zeros(span.batch, length, dtype=torch.int64, device=device) for length in lengths]
        declared = model.cost(span)
        assert count(model, *tokens) == sum(declared.executed.values()), values
        assert sum(p.numel() for p in model.parameters()) == sum(declared.parameters.values()), values


@pytest.mark.parametrize(
    "name", sorted({*MECHANISMS} - {"relu", *NOT_DERIVED} - {n for n in MECHANISMS if "taylor" in n})
)
def test_derived_if_a_mechanism_does_not_branch_on_the_length(name):
    draw = random.Random(name)
    for _ in range(5):
        key_dim, heads, length = 2 + odd(draw, 20), odd(draw, 5), odd(draw, 60)
        mechanism = MECHANISMS[name](key_dim)
        inputs = tuple(Input.parse(f"float[1,{heads},n,{width}]") for width in (key_dim, key_dim, key_dim))
        found = derive_formulas(ModuleCall(mechanism, inputs), {"n": length})
        declared = mechanism.cost(Shape(1, heads, length, length, key_dim, key_dim))
        assert evaluate(found.executed, {"n": length}) == sum(declared.executed.values())


@pytest.mark.parametrize("name", NOT_DERIVED)
def test_the_exceptions_give_a_reason(name):
    mechanism = MECHANISMS[name](6)
    inputs = tuple(Input.parse("float[1,2,n,6]") for _ in range(3))
    found = derive_formulas(ModuleCall(mechanism, inputs, {"causal": True}), {"n": 128})
    assert found.executed is None
    assert found.reason
