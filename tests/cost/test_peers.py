"""The comparison with other counters in the documents is that of the result file."""

import json
from pathlib import Path

from benchmarks.cost_peers import RESULTS, table

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "cost.md"


def test_the_table_is_that_of_the_result_file():
    assert table(json.loads(RESULTS.read_text())) in DOCUMENT.read_text()


def test_ours_was_exact_on_every_module():
    rows = json.loads(RESULTS.read_text())["rows"]
    assert [row["qkv"]["verdict"] for row in rows] == ["exact"] * 31
    assert all(row["qkv"]["parameters_right"] for row in rows)
