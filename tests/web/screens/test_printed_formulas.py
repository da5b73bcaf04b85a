"""Every formula that the page prints is true, for each kind of attention with each position scheme."""

import math

import pytest
import torch

from qkv.attention import kinds
from qkv.explain import observe, trace_token
from qkv.models import Decoder, DecoderConfig, Recurrent, RecurrentConfig
from qkv.positions import schemes
from qkv.web.backend import Backend
from qkv.web.view_model import ModelViewModel
from tests.web.pages import go, number, opened
from tests.web.runs import serving
from tests.web.screens.printed_formula import check_lines, printed_lines

KINDS = ("softmax", "taylor", "taylor(order=4)", "linear", "elu")
QUICK = {("softmax", "alibi"), ("softmax", "t5"), ("softmax", "shaw"), ("taylor", "alibi"), ("elu", "none")}
PAIRS = [
    pytest.param(kind, scheme, marks=() if (kind, scheme) in QUICK else pytest.mark.slow)
    for kind in KINDS
    for scheme in ("none", *schemes)
    if scheme == "none" or schemes[scheme].serves(kinds[kind.split("(")[0]].accepts)
]
CELLS = [(4, 2), (3, 1)]


class ModelBackend(Backend):
    """A model with random weights, on one input."""

    def __init__(self, model, *inputs, tokens):
        self.model, self.tokens = model, tokens
        self.records = observe(model, *inputs)

    def about(self):
        return {"name": "random", "torch": "", "text": None, "writes": False}

    def view_model(self, params):
        return ModelViewModel(self.records, self.tokens, [], ["# observe("])


def decoder(kind, positions):
    config = DecoderConfig(dim=16, heads=2, layers=1, attention=kind, positions=positions, max_length=12)
    torch.manual_seed(3)
    model = Decoder(config, 11)
    for parameter in model.parameters():  # scores far from 0, and a bias where the scheme learns one
        torch.nn.init.normal_(parameter, std=0.7)
    return ModelBackend(model, [3, 4, 5, 6, 7, 8], tokens={"target": list("abcdef")})


def phrase(text):
    return tuple(text.split())


def stepwise_values(call, row, column):
    """What the step-by-step screen prints without a number."""
    trace = trace_token(call, row)
    sums = float(trace.sums[column])
    return {
        phrase("sum_d q_d k_jd"): sums,
        phrase("\u03c6 ( q ) * \u03c6 ( k_j )"): sums,
        phrase("w * tanh ( U q + V k_j )"): sums,
        phrase("sum_n w_n"): trace.normalizer,
    }


def atlas_values(call, row, column):
    """What the atlas prints without a number, and the terms of its sums."""
    trace = trace_token(call, row)

    def of(n, name):
        found = {"s": trace.scores[n], "b": trace.bias[n], "g": trace.decay[n]}
        features = {phrase(f"\u03c6 ( q_i ) * \u03c6 ( k_{name} )"): float(trace.sums[n])}
        return {(f"{letter}_i{name}",): float(value) for letter, value in found.items()} | features

    dot = float(call.q[0, 0, row].double() @ call.k[0, 0, column].double())
    values = {phrase("q_i * k_j"): dot, ("d",): float(call.q.shape[-1]), **of(column, "j")}
    return values, [of(n, "n") for n in range(len(trace.scores)) if not trace.masked[n]]


@pytest.mark.parametrize(("kind", "positions"), PAIRS)
def test_the_printed_equations_hold(browser, kind, positions):
    backend = decoder(kind, positions)
    call = backend.records[0].head(0)
    with serving(backend) as server, opened(browser, server.address) as page:
        for row, column in CELLS:
            go(page, screen="stepwise", head=0, row=row, column=column, step=7)
            assert check_lines(printed_lines(page), stepwise_values(call, row, column)) >= 3
            go(page, screen="atlas", head=0, row=row, column=column)
            assert check_lines(printed_lines(page), *atlas_values(call, row, column)) >= 1
            assert number(page, "#weight") == pytest.approx(float(call.weights()[0, 0, row, column]), abs=6e-5)


@pytest.mark.parametrize(
    "kind", ["linear+forget", "softmax+forget", pytest.param("taylor+forget", marks=pytest.mark.slow)]
)
def test_the_printed_equations_hold_with_a_gate(browser, kind):
    backend = decoder(kind, "none")
    call = backend.records[0].head(0)
    with serving(backend) as server, opened(browser, server.address) as page:
        for row, column in CELLS:
            go(page, screen="stepwise", head=0, row=row, column=column, step=7)
            assert check_lines(printed_lines(page), stepwise_values(call, row, column)) >= 3
            go(page, screen="atlas", head=0, row=row, column=column)
            assert check_lines(printed_lines(page), *atlas_values(call, row, column)) >= 1
            assert "A gate multiplies the weight by g" in page.inner_text("#explain")


def test_a_gate_inside_the_formula_is_no_factor_of_the_weight(browser):
    """The delta rule, and a gate per channel: neither prints a score or one factor g."""
    for kind, note in (("delta+forget+write", "A decay acts inside"), ("linear+channel", "A gate per channel fades")):
        backend = decoder(kind, "none")
        weights = backend.records[0].head(1).weights()[0, 0]
        with serving(backend) as server, opened(browser, server.address) as page:
            go(page, screen="atlas", head=1, row=4, column=2)
            formula, last = printed_lines(page)  # the formula, then its value
            assert "g_ij" not in formula[1]
            assert not any(token.startswith("s_") for side in formula for token in side)
            assert number(page, "#weight") == pytest.approx(float(weights[4, 2]), abs=6e-5)
            assert float("".join(last[1]).strip("()")) == pytest.approx(float(weights[4, 2]), abs=6e-5)
            assert note in page.inner_text("#explain")


def test_a_masked_key_has_no_weight(browser):
    backend = decoder("softmax", "alibi")
    with serving(backend) as server, opened(browser, server.address) as page:
        for state in ({"screen": "stepwise", "step": 7}, {"screen": "atlas"}):
            go(page, **state, row=1, column=3)
            lines = [side for sides in printed_lines(page) for side in sides if "#, masked" in side]
            assert [side[0] for side in lines] in (["0"], ["0.0000"])


def test_the_score_of_additive_attention(browser):
    """Its equations, and on the third screen that it takes no dot products."""
    torch.manual_seed(3)
    model = Recurrent(RecurrentConfig(dim=12, attention="additive", max_length=9), 9, 9)
    backend = ModelBackend(model, [3, 4, 5, 6], [4, 5], tokens={"source": list("abcd"), "generated": ["x", "y", "END"]})
    call = backend.records[0].head(0)
    with serving(backend) as server, opened(browser, server.address) as page:
        go(page, screen="stepwise", row=1, column=2, step=7)
        assert check_lines(printed_lines(page), stepwise_values(call, 1, 2)) >= 3
        assert "tanh" in page.inner_text(".formula")
        go(page, screen="versus", row=1, column=2)
        assert "takes no dot products" in page.inner_text("#main .warn")
        assert "tanh" in page.inner_text(".formula")


@pytest.mark.parametrize("other", ["taylor(order=4)", "elu"])
def test_the_equations_of_the_comparison(browser, server, other):
    with opened(browser, server.address) as page:
        go(page, screen="versus", text="fabcde", site=1, row=3, column=4, kind=other)
        lines = printed_lines(page)
        score = float("".join(lines[0][-1]).strip("()"))
        assert check_lines(lines[:2], {("s_ij",): score}) >= 2
        values = [sides[1][0] for sides in lines if not sides[0]]
        expected = [sum(score**n / math.factorial(n) for n in range(5))] if other != "elu" else []
        assert [float(value) for value in values] == pytest.approx(expected, abs=5e-4)
