"""The forecasts in the docs are those of the result file, and within the stated error."""

import json
import statistics
from pathlib import Path

import pytest

from benchmarks.cost_time import RESULTS, table
from benchmarks.cost_time_modules import development, held_out, held_out_races, validation

DOCUMENT = Path(__file__).parents[3] / "docs" / "cost.md"


@pytest.fixture(scope="module")
def result():
    return json.loads(RESULTS.read_text())


def test_the_table_is_that_of_the_result_file(result):
    assert table(result) in DOCUMENT.read_text()


def test_every_held_out_module_is_in_it(result):
    modules, lengths = held_out()
    rows = [(row["module"], row["n"]) for row in result["held_out"]["rows"]]
    assert rows == [(module.name, n) for module in modules for n in lengths]
    assert [row["race"] for row in result["crossovers"]["held_out"]] == [race.name for race in held_out_races()]


def test_no_held_out_module_was_used_before():
    seen = {module.name for choose in (development, validation) for module in choose()[0]}
    assert not seen & {module.name for module in held_out()[0]}


def test_the_median_error_is_within_the_bound(result):
    rows = result["held_out"]["rows"]
    assert statistics.median(abs(row["predicted_ms"] / row["measured_ms"] - 1) for row in rows) <= 0.35
    assert all(1 / 3 <= row["ratio"] <= 3 for row in rows)
