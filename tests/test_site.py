"""The site builds without a warning, can be searched, and loads nothing from elsewhere."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from qkv.attention import kinds
from qkv.positions import schemes
from qkv.problems import problems

ROOT = Path(__file__).parent.parent
LOADS = re.compile(
    r"""(?:\bsrc\s*=\s*|<link\b[^>]*\bhref\s*=\s*|url\(\s*|@import\s+|importScripts\(\s*|fetch\(\s*)["']?(?:https?:)?//""",
    re.I,
)


def run(*arguments):
    done = subprocess.run([sys.executable, "-m", *map(str, arguments)], cwd=ROOT, capture_output=True, check=False)
    output = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, output
    return output


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Built from everything but the problems that train, which are shown as they would be anyway."""
    folder = tmp_path_factory.mktemp("site")
    quick = [name for name in problems if not problems[name].slow]
    run("docs.generate", folder / "docs", *quick)
    settings = (ROOT / "mkdocs.yml").read_text()
    settings = settings.replace("build/docs", str(folder / "docs")).replace("build/site", str(folder / "site"))
    for part in ("theme", "generate"):
        settings = settings.replace(f"docs/{part}", str(ROOT / "docs" / part))
    (folder / "mkdocs.yml").write_text(settings)
    output = run("mkdocs", "build", "--strict", "--config-file", folder / "mkdocs.yml")
    assert "WARNING" not in output
    return folder / "site"


@pytest.mark.slow
def test_every_kind_and_scheme_has_its_page_and_picture(site):
    for group, table in (("attention", kinds), ("positions", schemes)):
        ours = {name for name in table if table[name].__module__.startswith("qkv.")}  # other tests register their own
        assert {path.stem for path in (site / group).glob("*.html")} == ours
        assert {path.stem for path in (site / group).glob("*.svg")} == ours


@pytest.mark.slow
def test_pages_of_problems_have_call_answer_and_slip(site):
    page = (site / "problems" / "c.html").read_text()
    for part in ("Convolutional", "168,572", "The slip:", 'id="c6"'):
        assert part in page
    assert "C5.svg" in page
    assert (site / "problems" / "C5.svg").exists()
    assert "open" in (site / "problems" / "index.html").read_text()


@pytest.mark.slow
def test_the_site_can_be_searched(site):
    index = json.loads((site / "search" / "search_index.json").read_text())
    found = {entry["location"].split("#")[0] for entry in index["docs"] if "polynomial" in entry["text"]}
    assert "attention/taylor.html" in found
    assert len(index["docs"]) > 200


@pytest.mark.slow
def test_nothing_is_loaded_from_elsewhere(site):
    files = [path for path in site.rglob("*") if path.suffix in (".html", ".css", ".js", ".svg")]
    assert len(files) > 60
    assert [(path.name, found[0]) for path in files if (found := LOADS.search(path.read_text()))] == []
    assert [path.name for path in site.rglob("*.html") if "mkdocs.org" in path.read_text()] == []


def test_the_pattern_finds_loads():
    for text in (
        '<script src="https://cdn.example/x.js">',
        "<script src=//cdn.example/x.js>",
        '<link rel="stylesheet" href="https://fonts.example/css">',
        "body { background: url(http://a.example/b.png) }",
        "@import 'https://a.example/b.css';",
    ):
        assert LOADS.search(text)
    assert not LOADS.search('<a href="https://arxiv.org/abs/1706.03762">paper</a> <img src="a.svg">')
