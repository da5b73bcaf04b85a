import json
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

from tests.cli.run import ROOT, qkv, qkv_process

KEYS = {"id", "question", "call", "answer", "hand_written", "slip", "ok"}


def test_json_has_stable_keys():
    records = json.loads(qkv("problems", "c6", "C3", "F1", "--json"))
    assert [record["id"] for record in records] == ["C6", "C3", "F1"]
    assert all(set(record) == KEYS for record in records)
    assert records[0]["answer"]["4 classes, pool"] == [168572, 354944]
    assert [record["ok"] for record in records] == [True, True, True]
    assert records[0]["slip"] is None
    assert "150 is the number of statistics" in records[1]["slip"]


@pytest.mark.process
def test_a_call_from_the_json_runs_by_itself():
    (record,) = json.loads(qkv("problems", "B1", "--json"))
    code = record["call"] + "print(answer['sum'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert abs(float(done.stdout) - 11.1073) < 5e-5


def test_a_panel_has_all_parts():
    text = qkv("problems", "C3")
    for part in ("learned parameters", "by hand: 150 parameters", "slip:", "✓", "PreNorm(100)"):
        assert part in text
    assert "1 of 1 computed answers are as expected; 1 hand-written answers have a mistake" in text


def test_panels_fit_50_columns_and_nothing_is_cut():
    text = qkv("problems", "A1", columns=50)
    assert max(map(len, text.splitlines())) <= 50
    inside = "".join(line.strip("│ ") for line in text.splitlines())
    assert "binary_cross_entropy_with_logits" in inside
    assert "tables that a line can draw" in text


def test_pictures(tmp_path):
    text = qkv("problems", "B5", "A9", "--plot", str(tmp_path / "new"))
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["B5.svg"]
    assert "B5.svg" in text
    ET.parse(tmp_path / "new" / "B5.svg")


@pytest.mark.process
def test_an_answer_that_is_not_right_exits_with_3(tmp_path, monkeypatch):
    """A library that counts a cost wrongly, as a user would run it."""
    (tmp_path / "sitecustomize.py").write_text(
        "import qkv.cost.counter as count\n"
        "right = count.count_multiplications.total.fget\n"
        "count.count_multiplications.total = property(lambda counted: right(counted) + 1)\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    text = qkv_process("problems", "C2", code=3)
    assert "✗ the computed answer is not as expected" in text
    assert "0 of 1" in text


def test_wrong_use(tmp_path):
    assert "unknown problem 'B55'; did you mean 'B5'?" in qkv("problems", "B55", code=2)
    (tmp_path / "file").write_text("")
    assert "cannot be created" in qkv("problems", "A9", "--plot", str(tmp_path / "file"), code=2)


@pytest.mark.parametrize("name", ["A1", "A5"])
def test_a_missing_extra_is_one_sentence_that_names_it(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    error = qkv("problems", name, code=2)
    assert error.count("\n") == 1
    assert f"{name} cannot be computed: linear programming needs scipy" in error
    assert 'pip install "qkv[optimize]"' in error


def test_a_missing_extra_leaves_other_problems(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    text = qkv("problems", "A1", "C3", code=3)
    assert "1 of 2 computed answers" in text
    assert text.count("✓") == 1
    assert "✗" not in text
    assert 'pip install "qkv[optimize]"' in " ".join(text.split())


def test_without_ids_there_is_an_index():
    text = qkv("problems")
    records = json.loads(qkv("problems", "--json"))
    assert len(records) > 30
    assert all(f" {record['id']} " in text for record in records)
    assert all(set(record) == {"id", "question", "slow"} for record in records)
