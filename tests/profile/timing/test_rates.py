"""The arithmetic of time forecasts; their accuracy is measured in benchmarks/cost_time.py."""

import json

import pytest
import torch
from torch import nn

from qkv.cost import Input, Operation, count_multiplications
from qkv.cost.meta_run import ModuleCall
from qkv.profile.timing.forecast import Forecast, forecast, predict_call
from qkv.profile.timing.op_terms import MEMORY_BOUND, TERMS, op_category, term_amounts
from qkv.profile.timing.python_overhead import CallCounts, count_calls
from qkv.profile.timing.rates import Rates
from qkv.profile.timing.rates_cache import machine_rates

EACH = {"start": 1e-6, "multiplications": 1e-9, "copies": 1e-5, "steps": 1e-5, "visits": 1e-9}


def known():
    """Round rates: 1 us to start, 1 ns per multiplication or byte, 10 us per copy or step, 2 ns per other unit."""
    terms = {category: {term: EACH.get(term, 2e-9) for term in names} for category, names in TERMS.items()}
    return Rates(
        4e-6, 3e-6, 0.5e-6, 1e-6, terms, {category: [(1000.0, 1e-6), (1e6, 1e-3)] for category in MEMORY_BOUND}
    )


def traced(call, category):
    with count_multiplications(trace=True) as counting, torch.no_grad():
        call()
    (operation,) = [operation for operation in counting.trace if op_category(operation) == category]
    return operation


def test_a_product_pays_for_its_start_multiplications_and_elements():
    operation = traced(lambda: torch.ones(3, 5) @ torch.ones(5, 7), "product")
    assert term_amounts(operation) == {"start": 1, "multiplications": 105, "left": 15, "right": 35, "result": 21}
    assert known().seconds(operation) == pytest.approx(1e-6 + 105e-9 + 2e-9 * (15 + 35 + 21))


def test_a_batch_of_products_pays_for_each():
    operation = traced(lambda: torch.ones(2, 3, 5) @ torch.ones(2, 5, 7), "batched product")
    sides = {"left": 30, "right": 70, "result": 42}
    assert term_amounts(operation) == {"start": 1, "copies": 2, "multiplications": 210, "narrow": 210, **sides}
    assert known().seconds(operation) == pytest.approx(1e-6 + 2e-5 + 210e-9 + 2e-9 * (210 + 142))


@pytest.mark.parametrize(("columns", "narrow"), [(15, 2 * 3 * 5 * 15), (16, 0), (17, 0)])
def test_fewer_columns_than_a_vector_holds_are_narrow(columns, narrow):
    operation = traced(lambda: torch.ones(2, 3, 5) @ torch.ones(2, 5, columns), "batched product")
    assert term_amounts(operation)["narrow"] == narrow


def attend(queries, keys, *, causal=False, dim=8):
    q, k = torch.ones(2, 3, queries, dim), torch.ones(2, 3, keys, dim)
    return lambda: nn.functional.scaled_dot_product_attention(q, k, k, is_causal=causal)


def test_attention_pays_for_pairs_too():
    operation = traced(attend(5, 7), "attention")
    sizes = {"copies": 6, "multiplications": 6 * 35 * 16, "pairs": 6 * 35, "queries": 6 * 5, "keys": 6 * 7 * 8}
    assert term_amounts(operation) == {"start": 1, "narrow": 6 * 35, **sizes}
    assert term_amounts(traced(attend(5, 7, dim=16), "attention"))["narrow"] == 0


def test_causal_attention_skips_blocks_of_512_keys():
    """1024 queries in four blocks of 256: the first two see 512 keys, the others all; below 512 nothing is skipped."""
    assert term_amounts(traced(attend(1024, 1024, causal=True), "attention"))["pairs"] == 6 * 1024 * 768
    assert term_amounts(traced(attend(500, 500, causal=True), "attention"))["pairs"] == 6 * 500 * 500


@pytest.mark.parametrize(
    ("category", "layer", "multiplications"),
    [
        ("convolution", nn.Conv2d(3, 5, 3, bias=False), 2 * 5 * 5 * 5 * 27),
        ("pointwise convolution", nn.Conv2d(3, 5, 1, bias=False), 2 * 7 * 7 * 5 * 3),
        ("grouped convolution", nn.Conv2d(3, 3, 3, groups=3, bias=False), 2 * 5 * 5 * 3 * 9),
    ],
)
def test_convolutions_pay_for_multiplications_and_elements(category, layer, multiplications):
    x = torch.ones(2, 3, 7, 7)
    operation = traced(lambda: layer(x), category)
    elements = x.numel() + layer.weight.numel() + layer(x).numel()
    assert term_amounts(operation) == {"start": 1, "multiplications": multiplications, "elements": elements}


def test_a_recurrent_layer_pays_for_steps_weights_and_gates():
    """13 steps of 2 rows, 5 wide, 7 hidden: 4 * 7 gates."""
    layer = nn.LSTM(5, 7)
    weights = 28 * (5 + 7)
    found = term_amounts(traced(lambda: layer(torch.ones(13, 2, 5)), "recurrent layer"))
    gates = {"gates": 13 * 2 * 28}
    assert found == {"start": 1, "steps": 13, "multiplications": 26 * weights, "weights": 13 * weights, **gates}


def test_pooling_pays_for_each_input_of_a_window():
    """2 * 3 * 3 windows of 3 x 3, for a value and an index each."""
    operation = traced(lambda: nn.functional.max_pool2d(torch.ones(2, 1, 9, 9), 3), "pooling")
    assert term_amounts(operation) == {"start": 1, "visits": 2 * 18 * 9}


def test_bytes_moved():
    machine = known()
    assert machine.memory_seconds("light", 31_622.7766) == pytest.approx(31.6227766e-6)
    assert machine.memory_seconds("light", 1e6) == pytest.approx(1e-3)
    assert machine.memory_seconds("light", 1e9) == pytest.approx(1.0)
    assert machine.memory_seconds("light", 1) == pytest.approx(1e-6)


def test_a_lookup_moves_what_is_looked_up():
    """3 rows of 10 values, read and written, of a table of any size."""
    table = torch.ones(5000, 10)
    operation = traced(lambda: nn.functional.embedding(torch.tensor([1, 2, 999] * 10), table), "gather")
    assert known().seconds(operation) == pytest.approx(1e-9 * 2 * 300 * 4)


def test_a_forecast_is_the_sum_over_operations():
    trace = [
        Operation("mm", "", 1000, 100, 1200, (10, 10, 10, 1)),
        Operation("mul", "", 0, 100, 10**6),
        Operation("view", "", 0, 0, 0),
        Operation("empty", "", 0, 0, 0),
    ]
    parts = known().predict(trace, CallCounts(python=5, compiled=3))
    expected = {"light": 1e-3, "python": 8 * 4e-6 + 3 * 3e-6, "product": 2.6e-6, "start": 1e-6, "view": 0.5e-6}
    assert parts == pytest.approx(expected)
    assert list(parts) == list(expected)
    assert Forecast(parts, 2e-3).predicted == pytest.approx(sum(expected.values()))


def test_operations_that_another_calls_do_not_come_from_python():
    """A GRU of 5 steps is one call, and many operations."""
    layer, x = nn.GRU(2, 3), torch.ones(5, 1, 2)
    calls = count_calls(lambda: layer(x))
    with count_multiplications(trace=True) as counting:
        layer(x)
    assert calls.compiled < 50 < len(counting.trace)
    python = predict_call(lambda: layer(x), known())["python"]
    assert python == pytest.approx((calls.python + calls.compiled) * 4e-6 + calls.compiled * 3e-6)


def test_calls_of_a_known_program():
    def inner(x):
        return len(x)

    def outer():
        return [inner("a"), inner("b"), abs(-1)]

    assert count_calls(outer) == CallCounts(python=2, compiled=3)


def test_what_was_timed_from_python_is_less_without_it():
    less = known().without_binding(0.4e-6)
    assert (less.binding, less.view, less.start) == pytest.approx((0.4e-6, 0.1e-6, 0.6e-6))
    assert less.coefficients["product"] == pytest.approx(known().coefficients["product"] | {"start": 0.6e-6})
    assert less.memory_seconds("exp", 1000) == pytest.approx(0.6e-6)
    assert known().without_binding(9e-6).view == pytest.approx(0.05e-6), "never nothing"


def test_every_operation_of_a_model_has_a_rate_and_it_is_run_for_real():
    model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    found = forecast(ModuleCall(model, (Input.parse("float[1,n,16]"),)), {"n": 5}, known())
    assert {"product", "attention", "norm", "light", "python", "view"} <= set(found.parts)
    assert found.measured > 0
    assert found.ratio == found.predicted / found.measured


def test_half_precision_is_not_run_on_a_cpu():
    """3 x 4 x 4 multiplications and 12 + 16 + 12 elements in one product; the weights are transposed by a view."""
    model = nn.Linear(4, 4, bias=False).to(torch.bfloat16)
    found = forecast(ModuleCall(model, (Input.parse("bfloat16[3,4]"),)), {}, known())
    assert found.parts == pytest.approx({"product": 1e-6 + 48e-9 + 2e-9 * 40, "view": 0.5e-6})
    assert found.measured is None


@pytest.mark.parametrize("damage", ["{", "[]", '{"memory_bound": 3}', '{"memory_bound": {}, "coefficients": {}}'])
def test_damaged_rates_are_measured_again(tmp_path, monkeypatch, damage):
    monkeypatch.setenv("QKV_CACHE", str(tmp_path))
    monkeypatch.setattr("qkv.profile.timing.rates_cache.calibrate", known)
    assert machine_rates() == known()
    (kept,) = tmp_path.iterdir()
    kept.write_text(damage)
    assert machine_rates() == known()
    assert json.loads(kept.read_text())["format"] == 3


@pytest.mark.slow
def test_rates_are_measured_once_and_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("QKV_CACHE", str(tmp_path))
    first = machine_rates()
    assert machine_rates() == first
    (kept,) = tmp_path.iterdir()
    kept.write_text("{")
    assert machine_rates().start > 0
