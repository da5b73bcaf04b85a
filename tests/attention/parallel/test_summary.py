"""The law of summaries: the state before some tokens, advanced by their summaries, is the state after them."""

import pytest
import torch

from qkv.attention import parse
from qkv.attention.internal.validation import Modifiers
from qkv.attention.parallel.part import start_state
from qkv.attention.parallel.summary import SummaryOptions
from qkv.cost import Shape
from tests.attention.parallel.cases import BATCH, CALLS, KEY_DIM, VALUE_DIM, build, make, part_lengths

CAUSAL = [call for call in CALLS if call.causal and "bias" not in call.modifiers]


def difference(found, wanted):
    assert found.keys() == wanted.keys()
    pairs = [(x.double(), wanted[name].double()) for name, x in found.items()]
    return max(float((x - y).abs().max() / y.abs().max().clamp(min=1)) for x, y in pairs)


@pytest.mark.parametrize("call", CAUSAL, ids=lambda call: call.name)
def test_summaries_of_parts_give_the_state_of_the_whole(call):
    attention, inputs = build(call), make(call)
    first = start_state(attention, inputs.q, inputs.k, inputs.v, Modifiers(True, **inputs.modifiers))
    _, whole = attention.step(inputs.q, inputs.k, inputs.v, first, **inputs.modifiers)
    summaries, start = [], 0
    for length in part_lengths(call.time, 4):
        piece = inputs.part(start, start + length, True)
        summaries.append(attention.summarize(piece.k, piece.v, first, **piece.modifiers))
        start += length
    state = attention.advance(first, summaries)
    assert state.length == call.time
    with torch.no_grad():
        assert difference(state.tensors(), whole.tensors()) < 1e-12


@pytest.mark.parametrize("call", CAUSAL, ids=lambda call: call.name)
def test_the_bytes_of_a_summary_are_those_of_the_formula(call):
    attention, inputs = build(call), make(call)
    given = inputs.modifiers
    first = start_state(attention, inputs.q, inputs.k, inputs.v, Modifiers(True, **given))
    summary = attention.summarize(inputs.k, inputs.v, first, **given)
    decay = given.get("decay")
    sizes = BATCH, call.heads, call.time, call.time, KEY_DIM, VALUE_DIM, call.key_heads
    shape = Shape(
        *sizes,
        causal=True,
        decay=decay is not None and decay.dim() == 1,
        gate_heads=max([x.shape[1] for x in (decay, given.get("beta")) if x is not None and x.dim() > 1], default=0),
        channel_gate=decay is not None and decay.dim() == 4,
        element_bytes=8,
    )
    formula = attention.summary_bytes(shape, SummaryOptions(mask="mask" in given, starts="starts" in given))
    assert sum(x.nbytes for x in summary.tensors.values()) == sum(formula.values())


def test_a_window_summarizes_only_what_it_sees():
    attention, x = parse("softmax(window=5)"), torch.randn(2, 3, 7, 4)
    summary = attention.summarize(x, x, attention.start(2, 3, 4, 4))
    assert torch.equal(summary.tensors["keys"], x[:, :, 2:])
    assert summary.length == 7


def test_advancing_by_no_part_keeps_the_state():
    attention = parse("taylor")
    k, v = torch.randn(2, 3, 7, 4), torch.randn(2, 3, 7, 5)
    first = attention.start(2, 3, 4, 5)
    _, state = attention.step(k, k, v, first)
    assert torch.equal(attention.advance(state, []).kv_sum, state.kv_sum)


def test_the_size_of_a_summary_does_not_depend_on_length_for_kinds_that_sum():
    sizes = {}
    for kind in ("linear", "elu", "taylor", "delta"):
        attention, state = parse(kind), parse(kind).start(1, 2, 4, 3)
        for time in (5, 500):
            made = attention.summarize(torch.randn(1, 2, time, 4), torch.randn(1, 2, time, 3), state)
            sizes[kind, time] = sum(x.nbytes for x in made.tensors.values())
    # key_dim 4, value_dim 3, 2 heads, float32; taylor has C(6, 2) = 15 features
    assert sizes == {
        **{("linear", time): 2 * 4 * 3 * 4 for time in (5, 500)},
        **{("elu", time): 2 * 4 * 4 * 4 for time in (5, 500)},
        **{("taylor", time): 2 * 15 * 4 * 4 for time in (5, 500)},
        **{("delta", time): 2 * 4 * 7 * 4 for time in (5, 500)},
    }
