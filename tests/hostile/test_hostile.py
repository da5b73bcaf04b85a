"""Every hostile file is refused in one sentence, within 2 CPU seconds and 500 MB."""

import json
import subprocess
import sys

import pytest

from tests.cli.run import ROOT
from tests.hostile.cases import CASES


def refusals(out, *options):
    """Run the cases in a process of its own, which forks; return the result file."""
    command = [sys.executable, "-m", "benchmarks.hostile_files", "--out", str(out), *options]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return json.loads(out.read_text())


def test_there_are_many_different_cases():
    assert len({case.name for case in CASES}) == len(CASES) >= 300


@pytest.mark.process
def test_bad_input_of_every_thirtieth_case_is_refused(tmp_path):
    found = refusals(tmp_path / "out.json", "--step", "30")
    assert [record for record in found["records"] if record["problem"]] == []
    assert found["refused"] == found["cases"] >= 10


@pytest.mark.slow
@pytest.mark.process
def test_bad_input_of_every_case_is_refused(tmp_path):
    found = refusals(tmp_path / "out.json")
    assert [record for record in found["records"] if record["problem"]] == []
    assert found["refused"] == found["cases"] == len(CASES)
