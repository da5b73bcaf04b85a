"""The site builds without warnings, is searchable, and loads nothing from other hosts."""

import functools
import http.server
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from docs.generate.formulas import to_mathml
from qkv.attention import kinds
from qkv.positions import schemes
from qkv.problems import problems

ROOT = Path(__file__).parent.parent
LOADS = re.compile(
    r"""(?:\bsrc\s*=\s*|<link\b[^>]*\bhref\s*=\s*|url\(\s*|@import\s+|importScripts\(\s*|fetch\(\s*)["']?(?:https?:)?//""",
    re.I,
)
PAGES = ("index.html", "tutorial.html", "attention/taylor.html", "reference/attention.html", "problems/b.html")


def run(*arguments):
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
    output = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, output
    return output


def build(folder):
    """Build everything except the problems that train."""
    quick = [name for name in problems if not problems[name].slow]
    run("docs.generate", folder, *quick)
    output = run("mkdocs", "build", "--strict", "--config-file", folder / "mkdocs.yml")
    assert "WARNING" not in output


@pytest.fixture(scope="module")
def site(build_once):
    return build_once("site", build) / "site"


@pytest.mark.slow
def test_every_kind_and_scheme_has_its_page_and_picture(site):
    for group, table in (("attention", kinds), ("positions", schemes)):
        ours = {name for name in table if table[name].__module__.startswith("qkv.")}  # other tests register their own
        assert {path.stem for path in (site / group).glob("*.html")} == ours
        assert {path.stem for path in (site / group).glob("*.svg")} == ours


@pytest.mark.slow
def test_formulas_are_mathml(site):
    for page in [*(site / "attention").glob("*.html"), *(site / "positions").glob("*.html")]:
        text = page.read_text()
        assert "<math " in text
        assert "$$" not in text


@pytest.mark.slow
def test_pages_of_problems_have_call_answer_and_mistake(site):
    page = (site / "problems" / "c.html").read_text()
    for part in ("Convolutional", "168,572", "The mistake:", 'id="c6"'):
        assert part in page
    assert "C5.svg" in page
    assert (site / "problems" / "C5.svg").exists()
    index = (site / "problems" / "index.html").read_text()
    assert 'href="f.html#f1"' in index
    assert "not as expected" not in index


@pytest.mark.slow
def test_the_reference_documents_public_names(site):
    page = (site / "reference" / "attention.html").read_text()
    for name in ("Attention", "Taylor", "Taylor.features", "weights", "attend.attend"):
        assert f'id="qkv.attention.{name}"' in page


@pytest.mark.slow
def test_the_site_can_be_searched(site):
    index = json.loads((site / "search" / "search_index.json").read_text())
    found = {entry["location"].split("#")[0] for entry in index["docs"] if "polynomial" in entry["text"]}
    assert "attention/taylor.html" in found
    assert len(index["docs"]) > 200


@pytest.mark.slow
def test_no_file_refers_to_another_host(site):
    files = [path for path in site.rglob("*") if path.suffix in (".html", ".css", ".js", ".svg")]
    assert len(files) > 60
    assert [(path.name, found[0]) for path in files if (found := LOADS.search(path.read_text()))] == []


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture
def address(site):
    """The address of the site on a local server."""
    handler = functools.partial(_Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


@pytest.fixture
def visit(browser):
    """Return `visit(url)`: a page in a new window, with the lists of its requests and of its errors."""
    windows = []

    def open_page(url):
        window = browser.new_context()
        windows.append(window)
        page, requests, errors = window.new_page(), [], []
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(url, wait_until="load")
        return page, requests, errors

    yield open_page
    for window in windows:
        window.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_a_browser_loads_pages_from_this_server_alone(address, visit, name):
    page, requests, errors = visit(address + name)
    page.wait_for_load_state("networkidle")
    assert len(requests) >= 3
    assert [url for url in requests if not url.startswith((address, "data:", "blob:"))] == []
    assert errors == []


@pytest.mark.slow
def test_a_browser_opens_files_without_the_network(site, visit):
    page, requests, _ = visit((site / "attention" / "taylor.html").as_uri())
    assert page.locator("math").count() >= 1
    assert page.locator("h1").inner_text().startswith("taylor")
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []


@pytest.mark.slow
def test_search_dark_mode_and_copy_buttons_work(address, visit):
    page, _, errors = visit(address + "index.html")
    page.locator("input[name=query]").first.fill("polynomial")
    page.wait_for_selector("a.md-search-result__link[href*='attention/taylor.html']", state="attached")
    page.goto(address + "index.html")
    page.locator("label[title='Switch to dark mode']").click()
    page.wait_for_selector("body[data-md-color-scheme=slate]")
    page.locator("div.highlight").first.hover()
    page.wait_for_selector("button[data-clipboard-target], .md-code__button", state="attached")
    assert errors == []


def test_formulas_become_one_element_per_line():
    text = to_mathml("before\n\n$$\nx^2\n\\frac{a}{b}\n$$\n\nafter")
    assert text.startswith('before\n\n<div class="formula"><math ')
    assert text.endswith("</math></div>\n\nafter")
    assert text.count("<math ") == 2
    assert "<msup><mi>x</mi><mn>2</mn></msup>" in text
    assert "<mfrac>" in text


def test_prices_and_shell_variables_are_no_formulas():
    for text in ("`$$`", "costs $5 and $6", "echo $$\nls"):
        assert to_mathml(text) == text


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
