"""The metadata of the package: extras, pinned tools, types, the description on an index page."""

import re
import sys
import tomllib
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.install import COMMANDS, EXTRAS, Command, declared_extras, judge

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
CONSTRAINTS = re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M)


@pytest.fixture
def hook(monkeypatch):
    """The build hook; hatchling, which is not installed here, is replaced by an empty base class."""
    interface = ModuleType("hatchling.metadata.plugin.interface")
    interface.MetadataHookInterface = object
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    spec = spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_description_has_no_relative_link_or_picture(hook):
    readme = (ROOT / "README.md").read_text()
    made = hook.ReadmeHook()
    made.root, metadata = ROOT, {}
    made.update(metadata)
    page = metadata["readme"]["text"]
    assert metadata["readme"]["content-type"] == "text/markdown"
    assert len(re.findall(r"\]\((?!https?:)", readme)) > 10
    assert re.findall(r"\]\((?!https?:)", page) == []
    assert 0.8 * len(readme) < len(page) < len(readme)


def test_absolute_links_are_kept_on_an_index_page(hook):
    text = "![a](docs/a.svg)\n\n![b](https://c/d.svg)\n[e](f.md), [g](https://h/i)\n"
    assert hook.index_page(text) == "![b](https://c/d.svg)\ne, [g](https://h/i)\n"


def test_the_extra_all_has_every_extra_of_users():
    extras = PROJECT["optional-dependencies"]
    (requirement,) = extras["all"]
    named = re.fullmatch(r"qkv\[(.+)\]", requirement)[1].split(",")
    assert set(named) == set(extras) - {"all", "dev", "docs"}


def test_numpy_is_not_optional():
    assert "numpy>=2" in PROJECT["dependencies"]


def test_licenses_of_bundled_weights_are_in_the_wheel():
    files = PROJECT["license-files"]
    assert "qkv/pronunciation/heteronyms/LICENSE_TAGGER.txt" in files
    assert all("Permission is hereby granted, free of charge" in (ROOT / file).read_text() for file in files)


def test_types_are_visible_to_other_projects():
    assert (ROOT / "qkv" / "py.typed").read_bytes() == b""
    assert "Typing :: Typed" in PROJECT["classifiers"]


def test_tools_that_install_are_pinned():
    versions = {name.lower(): version for name, version in CONSTRAINTS}
    assert len(versions) == len(CONSTRAINTS)
    assert {"pip", "setuptools"} <= set(versions)
    assert PYPROJECT["build-system"]["requires"] == [f"hatchling=={versions['hatchling']}"]


def test_every_constraint_is_one_exact_version():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert len([line for line in lines if not line.startswith("#")]) == len(CONSTRAINTS)


def test_every_extra_is_installed_alone():
    assert set(EXTRAS) == {"base", *declared_extras()}


def test_every_command_of_the_readme_is_run_in_fresh_environments():
    """By its first word, and for `train`, `cost`, `bench`, `compare` and `words` by the second as well."""
    spans = re.findall(
        r"`(?:qkv|\.venv/bin/qkv) ([^`]+)`|^(?:\.venv/bin/)?qkv (.+)$", (ROOT / "README.md").read_text(), re.M
    )
    lines = [(span or line).split() for span, line in spans if not (span or line).startswith("-")]
    pairs = ("train", "cost", "bench", "compare", "words")
    named = {" ".join(words[:2]) if words[0] in pairs else words[0] for words in lines}
    assert len(named) >= 15
    assert named - {command.name for command in COMMANDS} == set()


@pytest.mark.parametrize(
    ("command", "code", "stderr", "outcome"),
    [
        (Command("a", "a"), 0, "", "ran"),
        (Command("a", "a"), 0, 'pip install "qkv[data]"\n', "failed"),
        (Command("a", "a"), 0, "FutureWarning: b\n", "failed"),
        (Command("a", "a"), 2, "", "failed"),
        (Command("a", "a nothing-here"), 2, "", "ran"),
        (Command("a", "a", "data"), 2, 'pip install "qkv[data]"\n', "named its extra"),
        (Command("a", "a", "data"), 2, 'pip install "qkv[web]"\n', "failed"),
        (Command("a", "a", "data"), 2, 'Traceback\npip install "qkv[data]"\n', "failed"),
        (Command("a", "a", "data"), 0, "", "failed"),
        (Command("a", "a", suggests="data"), 0, 'pip install "qkv[data]"\n', "ran"),
        (Command("a", "a", suggests="data"), 0, "", "failed"),
        (Command("a", "a", suggests="web"), 0, "", "ran"),
    ],
)
def test_outcomes_of_commands_in_a_fresh_environment(command, code, stderr, outcome):
    assert judge(command, frozenset({"web"}), code, stderr) == outcome
