"""How forecasts are printed."""

import pytest

from qkv.cli.tables.cost import print_forecast
from qkv.cli.tables.cost_compare import _record_timings
from qkv.profile.timing.forecast import Forecast


def test_predicted_measured_and_the_parts(capsys):
    print_forecast(Forecast({"product": 3e-3, "python": 1e-3}, 2e-3))
    printed = capsys.readouterr().out
    assert "predicted 4 ms, measured 2 ms, ratio 2.00" in printed
    assert "predicted, in ms: product 3 + python 1" in printed


def test_what_is_too_large_to_run_is_said_to_be(capsys):
    print_forecast(Forecast({"product": 3e-3}, None))
    assert "predicted 3 ms, not measured: too large to run here" in " ".join(capsys.readouterr().out.split())


def test_crossovers_of_times_that_grow_with_the_square_and_with_the_length():
    """n^2 against 30 n and, by the clock, against 40 n."""
    lengths = (16, 64, 256)
    square = {n: Forecast({"attention": 1e-9 * n * n}, 1e-9 * n * n) for n in lengths}
    straight = {n: Forecast({"batched product": 30e-9 * n}, 40e-9 * n) for n in lengths}
    record = _record_timings({"softmax": square, "elu": straight}, 256)
    assert [row["kind"] for row in record["time"]] == ["softmax", "elu"]
    assert record["time"][1]["ratio"] == pytest.approx(0.75)
    (crossed,) = record["time_crossovers"]
    assert (crossed["first"], crossed["second"]) == ("softmax", "elu")
    assert (crossed["predicted"], crossed["measured"], crossed["ratio"]) == pytest.approx((30, 40, 0.75))
