import sys

import pytest

from qkv.cli.shared.command import command_name


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "bin" / "qkv"
    path.parent.mkdir()
    path.touch(mode=0o755)
    return path


def test_the_command_is_its_path_unless_it_is_on_the_path(program, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(program), "train"])
    monkeypatch.setenv("PATH", "/nowhere")
    assert command_name() == str(program)
    monkeypatch.setenv("PATH", str(program.parent))
    assert command_name() == "qkv"


@pytest.mark.parametrize(("first", "expected"), [("-c", "qkv"), ("/x/qkv/__main__.py", f"{sys.executable} -m qkv")])
def test_other_ways_to_start(first, expected, monkeypatch):
    monkeypatch.setattr(sys, "argv", [first])
    assert command_name() == expected
