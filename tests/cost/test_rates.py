"""Forecasts of time: the arithmetic of rates; how well they foretell is measured in benchmarks/cost_time.py."""

import pytest
import torch
from torch import nn

from qkv.cost import Input, Operation
from qkv.cost.forecast import Forecast, forecast, predict
from qkv.cost.rates import Grid, Rates, rates
from qkv.cost.rehearse import Play

ONE = ((1,), (1,), (1,), (1,))


def known(rate):
    """A machine with one rate for all products, 1 us to start, 1 ns a byte."""
    grids = {sort: Grid(ONE, {"1x1x1x1": rate}) for sort in ("linear", "batched", "attention", "convolution", "rnn")}
    sorts = ("light", "copy", "exp", "gelu", "softmax", "norm", "reduce", "gather")
    return Rates(1e-6, 0.0, grids, {sort: [(1000.0, 1e-6), (1e6, 1e-3)] for sort in sorts})


def test_between_two_marks_rates_are_interpolated_in_ratios():
    grid = Grid(((1, 100), (1,), (1,), (1,)), {"1x1x1x1": 1e-9, "100x1x1x1": 1e-11})
    assert grid.at((1, 1, 1, 1)) == pytest.approx(1e-9)
    assert grid.at((10, 7, 7, 7)) == pytest.approx(1e-10)
    assert grid.at((10_000, 1, 1, 1)) == pytest.approx(1e-11)


def test_bytes_moved():
    machine = known(1e-9)
    assert machine.moved("light", 31_622.7766) == pytest.approx(31.6227766e-6)
    assert machine.moved("light", 1e9) == pytest.approx(1.0)
    assert machine.moved("light", 1) == pytest.approx(1e-6)


def test_a_forecast_is_the_sum_over_operations():
    trace = [
        Operation("mm", "", 10**6, 100, 1000, (10, 10, 10, 1)),
        Operation("mul", "", 0, 100, 10**6),
        Operation("view", "", 0, 0, 0),
    ]
    assert predict(trace, known(1e-9)) == pytest.approx(1e-6 + 1e-3 + 1e-3 + 1e-6)


def test_every_operation_of_a_model_has_a_rate_and_it_is_run_for_real():
    model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    found = forecast(Play(model, (Input.parse("float[1,n,16]"),)), {"n": 5}, known(1e-9))
    assert found.predicted > 0
    assert found.measured > 0
    assert found.ratio == found.predicted / found.measured


def test_half_precision_is_not_run_on_a_cpu():
    model = nn.Linear(4, 4).to(torch.bfloat16)
    found = forecast(Play(model, (Input.parse("bfloat16[3,4]"),)), {}, known(1e-9))
    assert found == Forecast(pytest.approx(1e-6 + 48e-9 + 1e-6), None)


@pytest.mark.slow
def test_rates_are_measured_once_and_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("QKV_CACHE", str(tmp_path))
    first = rates()
    assert rates() == first
    (kept,) = tmp_path.iterdir()
    kept.write_text("{")
    assert rates().start > 0
