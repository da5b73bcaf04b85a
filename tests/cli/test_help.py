import os
import re
import subprocess
import sys
from importlib.metadata import version
from inspect import signature

import pytest
import typer
from typer.models import OptionInfo

from qkv.attention import kinds
from qkv.cli import app
from qkv.cli.shared import completion
from qkv.tasks import tasks
from tests.cli.run import ROOT, qkv

COMMAND = typer.main.get_command(app)
PATHS = [
    (name, *below)
    for name, command in COMMAND.commands.items()
    for below in [(), *((one,) for one in getattr(command, "commands", {}))]
]


def test_help_lists_the_commands():
    text = qkv("--help")
    assert all(command in text for command in ("list", "check", "bench"))


@pytest.mark.parametrize("path", [(), *PATHS], ids=" ".join)
def test_help_has_one_style(path):
    text = qkv(*path, "-h")
    assert text == qkv(*path, "--help")
    assert "<" not in text.replace("<->", "")  # no type in angle brackets, none after a flag
    assert not re.search(r"\{\w+\}|\(default: ", text)
    assert not re.search(r"--(json|help|resume|verify)\b +(-h +)?(BOOL|INTEGER|TEXT)", text)


def test_option_like_its_placeholder_is_spelled_out():
    """typer 0.27 calls an option by its placeholder, `--DEVICE`, if both are the same word and no name is given."""
    functions = [info.callback for info in app.registered_commands]
    unnamed = [
        (function.__name__, name)
        for function in functions
        for name, parameter in signature(function).parameters.items()
        for option in getattr(parameter.annotation, "__metadata__", ())
        if isinstance(option, OptionInfo) and (option.metavar or "").lower() == name
        if not str(option.default).startswith("--")  # where typer keeps the first name of an annotated option
    ]
    assert len(functions) > 10
    assert unnamed == []


def test_defaults_and_placeholders_of_train():
    text = qkv("train", "--help")
    assert re.search(r"--steps +INTEGER", text)
    assert re.search(r"--run +PATH +Run folder\. \[default: runs/TASK-DATE\]", text)
    assert "Usage: qkv train [OPTIONS] TASK" in text


def test_predict_has_a_panel_per_use():
    text = qkv("predict", "--help")
    panels = re.findall(r"╭─ (.*?) ─+╮", text)
    assert [panel.split(" (")[0] for panel in panels] == [
        "Arguments",
        "Options",
        "Search",
        "Sampling",
        "Text",
        "Pictures",
        "Large files",
    ]
    assert "Below 1: more cautious" in text
    assert "Random seed for sampling." in text


@pytest.mark.process
def test_help_does_not_import_torch():
    code = (
        "import sys\n"
        "from qkv.cli import main\n"
        "sys.argv = ['qkv', '--help']\n"
        "try:\n    main()\n"
        "except SystemExit:\n    pass\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_the_version():
    assert qkv("--version") == f"{version('qkv')}\n"


def test_an_unknown_command_is_wrong_use():
    assert "No such command 'chek'" in qkv("chek", code=2)


def test_completion_knows_the_registered_names():
    assert completion.task_presets() == {name: tuple(tasks[name].presets) for name in tasks}
    released = [name for name in kinds if kinds[name].__module__.startswith("qkv.")]  # other tests register more
    assert sorted(completion.complete_kind("")) == sorted(released)
    assert completion.complete_task("pro") == ["pronounce"]
    assert completion.complete_task_or_preset("xor:w") == ["xor:wide"]
    assert completion.complete_task_or_preset("nothing:") == []


def test_completion_finds_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("runs/mine", "runs/other", "elsewhere/deep"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "runs/mine/config.json").write_text("{}")
    assert completion.complete_run("runs/m") == ["runs/mine"]
    assert completion.complete_run("") == ["elsewhere/", "runs/", "runs/mine", "runs/other/"]
    assert completion.complete_run("elsewhere/") == ["elsewhere/deep/"]
    assert completion.complete_run("nowhere/x") == []


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "expected"),
    [("qkv tra", ["train"]), ("qkv train pron", ["pronounce"]), ("qkv train xor --preset w", ["wide"])],
)
def test_a_shell_completes_without_torch(words, expected):
    code = (
        "import sys, atexit, os\n"
        "atexit.register(lambda: os.write(2, b'torch' if 'torch' in sys.modules else b''))\n"
        "from qkv.cli import app\n"
        "app(prog_name='qkv')\n"
    )
    count = str(len(words.split()) - 1)
    environment = {**os.environ, "_QKV_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": count}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=environment, check=False
    )
    assert done.stdout.split() == expected
    assert done.stderr == ""


def test_the_completion_script_is_printed(monkeypatch):
    monkeypatch.setenv("SHELL", "/bin/bash")
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: "bash")
    assert "_QKV_COMPLETE=complete_bash" in qkv("--show-completion")
