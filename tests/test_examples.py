"""Every example runs as its docstring shows."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
pytestmark = pytest.mark.process


def run(*arguments):
    done = subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_every_example_is_tried():
    assert {path.stem for path in EXAMPLES.glob("*.py")} - {"__init__"} == {
        "attention_picture",
        "recall_a_string",
        "relu_kind",
    }


@pytest.mark.process
def test_attention_picture(tmp_path):
    out = tmp_path / "picture.svg"
    assert "5 kinds" in run(EXAMPLES / "attention_picture.py", out)
    assert out.read_text().count("<rect") == 1 + 5 * (11 * 11 + 1)


@pytest.mark.slow
def test_relu_kind():
    lines = run(EXAMPLES / "relu_kind.py").splitlines()
    assert len(lines) >= 14
    assert [line for line in lines if not line.startswith("ok ")] == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["softmax", "taylor", "linear", "elu"])
def test_recall_a_string(kind):
    """After a tiny training run the model repeats the sentence, letter by letter."""
    assert run(EXAMPLES / "recall_a_string.py", kind).rstrip().endswith("attention is a weighted mean of values.")
