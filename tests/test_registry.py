import subprocess
import sys

import pytest

from qkv.registry import Registry


def test_a_name_is_taken_once():
    table = Registry("thing", group="qkv.none")

    @table.register("first")
    class First:
        pass

    assert table["first"] is First
    assert First.kind == "first"
    assert list(table) == ["first"]
    assert table.register("first")(First) is First
    with pytest.raises(ValueError, match="thing 'first' is already tests.*First"):
        table.register("first")(type("Second", (), {}))


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package as pip would leave it, with an entry point into our table."""

    def install(module_text):
        (tmp_path / "somebody.py").write_text(module_text)
        about = tmp_path / "somebody-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: somebody\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text("[qkv.attention]\ntheirs = somebody\n")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    return install


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_a_kind_from_an_installed_package(installed):
    installed(
        "from qkv.attention import Softmax, register, Scored\n"
        "@register('theirs')\n"
        "class Theirs(Softmax):\n"
        "    'A kind of somebody else.'\n"
    )
    done = run("from qkv.attention import kinds; print(list(kinds), kinds['theirs'].kind)")
    assert (done.returncode, done.stderr) == (0, "")
    assert "'theirs'" in done.stdout


def test_a_broken_package_warns_and_breaks_nothing(installed):
    installed("raise RuntimeError('half installed')\n")
    done = run("from qkv.attention import kinds; print(list(kinds))")
    assert done.returncode == 0
    assert "softmax" in done.stdout
    assert "plugin 'theirs' (somebody) failed to load: half installed" in done.stderr
