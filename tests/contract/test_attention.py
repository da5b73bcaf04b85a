"""The contract of every attention mechanism, on drawn shapes, masks, modifiers, chunk sizes and split points.

`EXAMPLES` cases are drawn for each mechanism and each property; `test_enough_cases` adds them up.
"""

from copy import copy
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.attention import Case, check
from qkv.attention.contract import identities
from tests.contract.mechanisms import MECHANISMS, make

EXAMPLES = 40
PROPERTIES = 8
CAUSAL_ONLY = {name for name in MECHANISMS if make(name, 5).causal_only}  # not in a strategy: building one may draw
every_mechanism = pytest.mark.parametrize("name", MECHANISMS)
drawn = settings(max_examples=EXAMPLES, deadline=None, derandomize=True)


@st.composite
def cases(draw, name, ordered=None):
    """Draw a case of any sizes, odd ones included."""
    key_heads = draw(st.sampled_from([1, 2, 3]))
    keys = draw(st.integers(0, 37))
    causal = draw(st.booleans()) if ordered is None else ordered
    causal = causal or "window" in name or name in CAUSAL_ONLY
    return Case(
        batch=draw(st.integers(1, 3)),
        heads=key_heads * draw(st.sampled_from([1, 2, 5])),
        key_heads=key_heads,
        queries=keys if causal else draw(st.integers(0, 23)),
        keys=keys,
        key_dim=draw(st.integers(1, 7)),
        value_dim=draw(st.integers(1, 11)),
        causal=causal,
        masked=draw(st.booleans()),
        modifier=draw(st.sampled_from([None, "bias", "decay", "gate", "channel_gate"])),
        key_head_gate=draw(st.booleans()),
        max_rate=draw(st.sampled_from([1.0, 50.0])),
        documents=draw(st.booleans()),
        max_score=draw(st.sampled_from([0.1, 1.0, 10.0])),
        seed=draw(st.integers(0, 2**31)),
    )


@every_mechanism
@drawn
@given(data=st.data())
def test_every_form_equals_the_definition(name, data):
    case = data.draw(cases(name))
    mechanism = make(name, case.key_dim)
    chunk = data.draw(st.integers(1, 50))
    for variant in identities.variants(mechanism, chunks=[chunk]):
        assert identities.form_error(variant, case, identities.forward_output) <= mechanism.precision


@every_mechanism
@drawn
@given(data=st.data())
def test_steps_of_any_lengths_equal_the_definition(name, data):
    case = data.draw(cases(name, ordered=True))
    mechanism = make(name, case.key_dim)
    splits = sorted(data.draw(st.lists(st.integers(0, case.keys), max_size=5)))
    lengths = [end - start for start, end in zip([0, *splits], [*splits, case.keys], strict=True)]
    assert identities.form_error(mechanism, case, identities.step_output(lengths)) <= mechanism.precision


@every_mechanism
@drawn
@given(data=st.data())
def test_no_token_changes_what_came_before_it(name, data):
    case = data.draw(cases(name, ordered=True))
    assert identities.future_influence(make(name, case.key_dim), case) == 0


@every_mechanism
@settings(drawn, max_examples=10)
@given(data=st.data())
def test_a_nan_of_a_future_token_reaches_no_earlier_output(name, data):
    case = replace(
        data.draw(cases(name, ordered=True)), dtype=data.draw(st.sampled_from([torch.float32, torch.float64]))
    )
    mechanism = identities.cast(make(name, case.key_dim), case.dtype)
    assert identities.future_nonfinite_influence(mechanism, case) == 0


@every_mechanism
@drawn
@given(data=st.data())
def test_masked_keys_have_no_influence_whatever_they_hold(name, data):
    case = data.draw(cases(name))
    mechanism = make(name, case.key_dim)
    for variant in identities.variants(mechanism, chunks=[data.draw(st.integers(1, 50))]):
        assert identities.hidden_influence(variant, case) == 0
        assert identities.empty_row_violations(variant, case) == 0


@every_mechanism
@drawn
@given(data=st.data())
def test_grouped_heads_and_reordered_states(name, data):
    case = data.draw(cases(name))
    mechanism = make(name, case.key_dim)
    assert identities.grouped_heads_error(mechanism, case) <= mechanism.precision
    assert identities.reordered_state_error(mechanism, case) <= mechanism.precision


@every_mechanism
@drawn
@given(data=st.data())
def test_declared_cost_equals_the_counted(name, data):
    case = data.draw(cases(name))
    mechanism = make(name, case.key_dim)
    for variant in (mechanism, *identities.variants(mechanism, chunks=[data.draw(st.integers(1, 50))])):
        assert identities.multiplication_error(variant, case) == 0
        assert identities.state_bytes_error(variant, case) == 0


@every_mechanism
@drawn
@given(data=st.data())
def test_low_precision_rounds_once_and_stays_finite(name, data):
    dtype, bound = data.draw(st.sampled_from([(torch.float32, 1e-4), (torch.float16, 2.0**-10)]))
    case = replace(data.draw(cases(name)), dtype=dtype)
    mechanism = make(name, case.key_dim).to(dtype)
    assert identities.rounding_error(mechanism, case) <= bound
    assert identities.extreme_nonfinite(mechanism, replace(case, max_score=1e4)) == 0


@every_mechanism
@drawn
@given(data=st.data())
def test_inference_in_place_equals_steps_with_gradients(name, data):
    case = data.draw(cases(name, ordered=True))
    mechanism, capacity = make(name, case.key_dim), data.draw(st.sampled_from([None, 1, 64]))
    x = identities.draw_inputs(case, mechanism)
    expected = identities.forward_output(mechanism, x)
    with torch.inference_mode():
        state = identities.start_state(mechanism, x, capacity)
        parts = [expected[:, :, :0]]
        for position in range(case.keys):
            out, state = identities.step_range(mechanism, x, state, position, position + 1)
            parts.append(out)
    assert identities.distance([torch.cat(parts, 2)], [expected]) <= mechanism.precision
    assert state.length == case.keys


def test_enough_cases():
    assert EXAMPLES * PROPERTIES * len(MECHANISMS) >= 2000


@every_mechanism
def test_check_passes(name):
    results = check(make(name, 5), key_dim=5)
    assert len(results) >= 14
    assert [result for result in results if not result.ok] == []


@every_mechanism
def test_check_finds_a_broken_scale(name):
    """A mechanism whose forward is slightly wrong fails the check."""

    class Off(type(make(name, 5))):
        def forward(self, q, k, v, **modifiers):
            return super().forward(q, k, v * (1 + 1e-9), **modifiers)

    mechanism = copy(make(name, 5))
    mechanism.__class__ = Off
    failed = {result.identity for result in check(mechanism, key_dim=5) if not result.ok}
    assert "forward = definition, and gradients" in failed


@pytest.mark.parametrize("index", [0, 1, 2])
def test_distance_is_inf_wherever_a_nan_is(index):
    """Python's `max` skips a NaN that does not come first."""
    expected = [torch.ones(2), torch.ones(3), torch.ones(4)]
    actual = [x.clone() for x in expected]
    assert identities.distance(actual, expected) == 0
    actual[index][-1] = torch.nan
    assert identities.distance(actual, expected) == float("inf")
    errors = [0.5, 0.1, 0.2]
    assert identities.largest_error(errors) == 0.5
    errors[index] = float("nan")
    assert not identities.largest_error(errors) <= 1
