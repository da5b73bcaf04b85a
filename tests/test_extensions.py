"""The recipes of CONTRIBUTING, followed in a copy of the repository: one new file and one line each, then used."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NEW = Path(__file__).parent / "extensions"
# part -> {new file: its source}, the file that gets one line, and that line
RECIPES = {
    "kind": (
        {"qkv/attention/squared.py": "kind.py"},
        "qkv/attention/__init__.py",
        "from .squared import Squared as Squared",
    ),
    "position": (
        {"qkv/positions/parity.py": "position.py"},
        "qkv/positions/__init__.py",
        "from .parity import Parity as Parity",
    ),
    "dataset": (
        {"qkv/data/corpora/squares.py": "dataset.py"},
        "qkv/data/__init__.py",
        "from .corpora.squares import squares as squares",
    ),
    "task": (
        {"qkv/tasks/count.py": "task.py"},
        "qkv/tasks/__init__.py",
        "from .count import CountTask as CountTask",
    ),
    "command": (
        {"qkv/cli/inspection/greet.py": "command.py"},
        "qkv/cli/__init__.py",
        '    "greet": "inspection.greet:greet",',
    ),
    "screen": (
        {"qkv/web/screens/counts.py": "screen.py", "qkv/web/static/screens/counts.js": "screen.js"},
        "qkv/web/screens/__init__.py",
        '    "counts",',
    ),
}
AFTER = {"command": '    "list": "inspection.list:list_registered",', "screen": '    "decoding",'}
"""Lines of tables that the new line follows; an export line goes to the end."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The package with all recipes followed."""
    root = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "qkv", root / "qkv", ignore=shutil.ignore_patterns("__pycache__"))
    for part, (files, table, line) in RECIPES.items():
        for target, source in files.items():
            assert not (root / target).exists()
            shutil.copy(NEW / source, root / target)
        lines = (root / table).read_text().splitlines()
        after = AFTER.get(part, lines[-1])
        lines.insert(lines.index(after) + 1, line)
        (root / table).write_text("\n".join(lines) + "\n")
    return root


@pytest.fixture(scope="module")
def run(copy):
    def run(*command):
        environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, *command], cwd=copy, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    return run


def qkv(run, *arguments):
    return run("-m", "qkv", *arguments)


@pytest.mark.parametrize("part", RECIPES)
def test_a_recipe_is_one_file_and_one_line(part, copy):
    files, table, line = RECIPES[part]
    assert len([target for target in files if target.endswith(".py")]) == 1
    before, after = (ROOT / table).read_text().splitlines(), (copy / table).read_text().splitlines()
    assert [new for new in after if new not in before] == [line]
    assert len(after) == len(before) + 1


def test_the_kind_is_listed_checked_and_called(run):
    assert "squared" in qkv(run, "list", "attention")
    checks = json.loads(qkv(run, "check", "--kind", "squared", "--json"))
    assert checks
    code = (
        "import torch, qkv; q = torch.ones(1, 2, 3, 4); print(qkv.attend(q, q, q, kind='squared', causal=True).sum())"
    )
    assert "tensor(24.)" in run("-c", code)


def test_the_position_scheme_is_listed_and_built_into_a_model(run):
    assert "parity" in qkv(run, "list", "positions")
    code = (
        "import torch; from qkv.models import Decoder, DecoderConfig\n"
        "model = Decoder(DecoderConfig(dim=8, heads=2, layers=1, positions='parity'), 5)\n"
        "print(tuple(model(torch.tensor([[1, 2, 3]])).shape))"
    )
    assert "(1, 3, 5)" in run("-c", code)


def test_the_data_set_is_listed_and_loaded(run):
    assert "squares" in qkv(run, "list", "data")
    assert "[0, 1, 4, 9, 16]" in run("-c", "from qkv.data import squares; print(squares().tolist())")


def test_the_task_is_trained_evaluated_predicted_compared_and_counted(run, copy):
    assert "count" in qkv(run, "list", "tasks")
    trained = json.loads(qkv(run, "train", "count", "--run", "runs/count", "--device", "cpu", "--json"))
    assert trained["figures"]["test"]["accuracy"] == 1
    assert json.loads(qkv(run, "eval", "runs/count", "--json"))["accuracy"] == 1
    assert qkv(run, "predict", "runs/count", "3 4 5", "8 9") == "3 4 5\t6\n8 9\t0\n"
    assert json.loads(qkv(run, "cost", "runs/count", "--json"))["parameters"]
    compared = ("compare", "count", "--attention", "softmax,squared", "--steps", "2", "--rates", "1e-2", "--seeds", "1")
    records = json.loads(qkv(run, *compared, "--out", "runs/compare", "--json"))
    assert "squared" in json.dumps(records)


def test_the_command_runs(run):
    assert "hello, world" in qkv(run, "greet", "world")
    assert "Greet somebody" in qkv(run, "--help")


def test_the_screen_is_served_and_drawn_on_a_saved_page(run, copy):
    qkv(run, "look", "pronounce", "word", "--out", "page.html")
    chromium = shutil.which("chromium")
    assert chromium is not None or os.environ.get("CI") != "true"
    if chromium is None:
        pytest.skip("chromium is not installed")
    page = subprocess.run(
        [
            *(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--dump-dom"),
            f"{(copy / 'page.html').as_uri()}#screen=counts",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "attention sites</text>" in page.stdout
