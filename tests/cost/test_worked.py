"""Costs worked out by hand, as literals: the ones that people are taught, and the slips they are taught with."""

import pytest
import sympy
from torch import nn

from benchmarks.cost_cases import CASES, convolutional
from qkv.attention import Elu, Softmax, Taylor
from qkv.cost import Shape, Span, analyze, crossings, format_formula
from qkv.cost.polynomial import symbol
from qkv.layers import FeedForward, MultiHead
from qkv.profile.blocks import BlockSpec, SelfAttention

N = symbol("n")


def attention():
    return SelfAttention(100, 36, 25, Softmax(backend="reference"))


def parameters(module):
    return sum(p.numel() for p in module.parameters())


def test_self_attention():
    report = analyze(attention(), ["float[1,n,100]"], {"n": 75})
    assert (report.parameters.value, report.needed.value, report.executed.value) == (9_700, 1_070_625, 1_070_625)
    assert format_formula(report.needed.formula) == "61*n**2 + 9700*n"
    assert {name: format_formula(method.formula) for name, method in report.methods.items()} == dict.fromkeys(
        ("declared", "derived", "counted"), "61*n**2 + 9700*n"
    )


def test_feed_forward():
    report = analyze(FeedForward(100, 200), ["float[1,n,100]"], {"n": 75})
    assert (report.parameters.value, report.needed.value) == (40_300, 3_000_000)
    assert format_formula(report.needed.formula) == "40000*n"


def test_layer_norm_learns_200_numbers_and_multiplies_no_matrices():
    report = analyze(nn.LayerNorm(100), ["float[1,n,100]"], {"n": 75})
    assert (report.parameters.value, report.needed.value) == (200, 0)


@pytest.mark.parametrize(
    ("norms", "output", "total"), [(0, 0, 200_000), (1, 0, 200_800), (2, 0, 201_600), (2, 1, 211_600)]
)
def test_four_layers(norms, output, total):
    parts = [nn.LayerNorm(100) for _ in range(norms)] + [nn.Linear(25, 100, bias=False) for _ in range(output)]
    layer = nn.ModuleList([attention(), FeedForward(100, 200), *parts])
    assert parameters(nn.ModuleList([layer for _ in range(4)])) == total // 4  # the same layer again counts once
    own = [attention(), FeedForward(100, 200), *parts]
    assert 4 * sum(map(parameters, own)) == total


def test_doubling_the_length_quadruples_the_scores():
    report = analyze(attention(), ["float[1,n,100]"], {"n": 75})
    twice = analyze(attention(), ["float[1,n,100]"], {"n": 150})
    for term in ("attention.scores", "attention.values"):
        assert twice.needed.terms[term].value == 4 * report.needed.terms[term].value
    assert twice.needed.terms["query.product"].value == 2 * report.needed.terms["query.product"].value


@pytest.mark.parametrize(
    ("pooled", "classes", "padding", "learned", "multiplied"),
    [
        (True, 4, 0, 168_572, 354_944),
        (False, 4, 0, 224_892, 276_840),
        (True, 10, 0, 169_298, 355_664),
        (False, 10, 0, 225_618, 277_560),
    ],
)
def test_convolutional_nets(pooled, classes, padding, learned, multiplied):
    report = analyze(convolutional(pooled=pooled, classes=classes, padding=padding), ["float[1,1,28,28]"])
    assert (report.parameters.value, report.needed.value) == (learned, multiplied)


def test_a_padded_first_convolution_sees_one_more_place_each_way():
    """28 -> 14 -> 6: 14 * 14 * 72 in place of 13 * 13 * 72."""
    report = analyze(convolutional(pooled=False, padding=1), ["float[1,1,28,28]"])
    assert report.needed.value == 276_840 + (14**2 - 13**2) * 72 == 278_784


def test_a_layer_with_batch_normalization():
    layer = nn.Sequential(nn.Linear(10, 20, bias=False), nn.BatchNorm1d(20))
    assert analyze(layer, ["float[b,10]"], {"b": 8}).parameters.value == 240


@pytest.mark.parametrize("heads", [1, 4, 12])
def test_the_head_count_changes_neither_parameters_nor_multiplications(heads):
    layer = MultiHead(768, heads, Softmax(), bias=False)
    report = analyze(layer, ["float[1,n,768]"], {"n": 128})
    assert layer.query.weight.numel() == 589_824
    assert sum(getattr(layer, name).weight.numel() for name in ("query", "key", "value")) == 1_769_472
    assert (report.parameters.value, report.needed.value) == (2_359_296, 327_155_712)
    assert format_formula(report.needed.formula) == "1536*n**2 + 2359296*n"


def test_an_encoder_layer():
    block = BlockSpec("encoder", {"d_model": 768, "d_ff": 3072}, heads=12, bias=True)
    report = analyze(block.build(), ["float[1,n,768]"], {"n": 128})
    assert (report.parameters.value, report.needed.value) == (7_087_872, 931_135_488)
    assert format_formula(report.needed.formula) == "1536*n**2 + 7077888*n"


@pytest.mark.parametrize("need_weights", [True, False])
def test_backward_is_counted_and_not_taken_for_twice_the_forward(need_weights):
    report = analyze(attention(), ["float[1,n,100]"], {"n": 75})
    assert report.backward == {"inputs without gradient": 1_413_750, "inputs with gradient": 2_141_250}
    layer = MultiHead(768, 12, Softmax(backend="reference"), bias=False)
    report = analyze(layer, ["float[1,n,768]"], {"n": 128})
    assert report.backward == {"inputs without gradient": 427_819_008, "inputs with gradient": 654_311_424}


def test_backward_of_a_convolutional_net():
    report = analyze(convolutional(pooled=True), ["float[1,1,28,28]"])
    assert report.backward == {"inputs without gradient": 661_216, "inputs with gradient": 709_888}


def test_tokens_have_no_gradient_to_be_counted():
    model = nn.Sequential(nn.Embedding(11, 7), nn.Linear(7, 5))
    report = analyze(model, ["int[1,n]"], {"n": 13})
    assert report.backward == dict.fromkeys(("inputs without gradient", "inputs with gradient"), 2 * 13 * 7 * 5)


def test_a_region_proposal_network():
    """256 channels, 3 anchors: 9 C^2 + C + 5 A C + 5 A parameters; 593,664 multiplications a place."""
    heads = nn.ModuleList([nn.Conv2d(256, 256, 3, padding=1), nn.Conv2d(256, 3, 1), nn.Conv2d(256, 12, 1)])
    assert parameters(heads) == 593_935
    counted = [analyze(layer, ["float[1,256,5,7]"]).needed.value for layer in heads]
    assert sum(counted) == 35 * 593_664


def crossover(kind, dim):
    costs = [sum(mechanism.cost(Shape(1, 1, 1, 1, dim, dim)).needed.values()) for mechanism in (Softmax(), kind)]
    return crossings(costs[0] * N**2, costs[1] * N)


def test_crossovers_of_linear_attention():
    """2 d n^2 = n (2 d^2 + d)"""
    assert crossover(Elu(), 64) == [sympy.Rational(129, 2)]
    assert crossover(Elu(), 16) == [sympy.Rational(33, 2)]


@pytest.mark.parametrize(("dim", "features", "state"), [(16, 153, 2_601), (64, 2_145, 139_425)])
def test_packed_taylor_states(dim, features, state):
    cost = Taylor().cost(Shape(1, 1, 1, 1, dim, dim))
    assert sum(cost.state.values()) == 4 * state == 4 * features * (dim + 1)
    assert crossings(2 * dim * 4 * N, sympy.Integer(4 * state)) == [sympy.Rational(state, 2 * dim)]


def test_taylor_attention_written_with_einsum():
    """n (2 F d + F + 2 D^2) a head, F = 1 + 16 + 256: 9,521 n, which meets 32 n^2 at 297.5."""
    case = next(case for case in CASES if case.name == "taylor16")
    report = analyze(case.build(), ["float[1,1,n,16]"] * 3, {"n": 128})
    assert format_formula(report.executed.formula) == "9521*n"
    assert crossings(32 * N**2, report.executed.formula) == [sympy.Rational(9521, 32)]


def test_the_terms_in_all_sizes():
    needed, learned = BlockSpec("attention", {"d_in": 100, "d_k": 36, "d_v": 25}).formulas(75)
    assert {name: format_formula(formula) for name, formula in needed.items()} == {
        "query.product": "d_in*d_k*n",
        "key.product": "d_in*d_k*n",
        "value.product": "d_in*d_v*n",
        "attention.scores": "d_k*n**2",
        "attention.values": "d_v*n**2",
    }
    assert format_formula(sum(learned.values())) == "2*d_in*d_k + d_in*d_v"


def test_the_terms_of_many_heads_are_in_the_width_of_the_model():
    needed, learned = BlockSpec("multi_head", {"d_model": 768}, heads=12).formulas(128)
    assert format_formula(sum(needed.values())) == "4*d_model**2*n + 2*d_model*n**2"
    assert format_formula(sum(learned.values())) == "4*d_model**2"


def test_spans_of_a_cross_attention_need_both_lengths():
    cost = MultiHead(8, 2, Softmax(), bias=False).cost(Span(3, 5, context=7))
    assert sum(cost.needed.values()) == 3 * (2 * 5 * 64 + 2 * 7 * 64 + 2 * 5 * 7 * 8)
