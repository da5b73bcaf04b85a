"""Screen 4 in a real browser, its numbers against the library's own calls."""

import math
from pathlib import Path

import pytest
import torch

import qkv
from qkv import runs
from qkv.decode import beam, greedy
from qkv.inference.seq2seq import search_limits
from qkv.web.api import respond
from qkv.web.backend import RunBackend
from tests.web.client import query, query_error
from tests.web.pages import go, location, number, opened, press, reach, settle, walk
from tests.web.runs import serving

TEXT = "fabcde"


@pytest.fixture(scope="module")
def run(pairs_run):
    _, task, model = runs.load(pairs_run)
    return task, model, torch.tensor([task.data.sources.encode(TEXT)])


def test_both_answers_and_their_probabilities(browser, server, run):
    task, model, source = run
    ((best, *_),) = beam(model, source, None, search_limits(model), beams=4, n_best=4)
    (walked,) = greedy(model, source, None, search_limits(model))
    with opened(browser, server.address) as page:
        go(page, screen="decoding", text=TEXT)
        for name, found in (("winner", best), ("greedy", walked)):
            words = [*task.data.targets.decode(found.tokens), *(["END"] if found.finished else [])]
            assert page.inner_text(f"#{name}") == " ".join(words)
            assert number(page, f"#{name}-log") == pytest.approx(found.log_probability, abs=1e-4)
        checks = page.locator("#strip .check").all_inner_texts()
        assert checks[0].startswith("✓ winner scored again in one pass, without a KV cache: off by")
        assert checks[1].startswith("✓ next tokens sum to 1 within")


def test_next_tokens_of_a_node(browser, server, run):
    task, model, source = run
    with opened(browser, server.address) as page:
        go(page, screen="decoding", text=TEXT, node=0, table=1)
        assert page.locator("h2").nth(1).inner_text() == "At the start"
        cells = page.locator("table").nth(1).locator("tbody tr").all_inner_texts()
        shown = {line.split()[0]: float(line.split()[-1].replace("\u2212", "-")) for line in cells}
        with torch.no_grad():
            logits = model(source, torch.tensor([[1]]))[0, -1]
        logits[[0, 1]] = -math.inf
        top = logits.softmax(-1).topk(3)
        for p, token in zip(top.values.tolist(), top.indices.tolist(), strict=True):
            assert shown["END" if token == 2 else task.data.targets.tokens[token - 4]] == pytest.approx(p, abs=2e-6)
        assert sum(shown.values()) == pytest.approx(1, abs=2e-5)


def test_the_legend_fits_however_short_the_word(browser, server):
    with opened(browser, server.address, viewport={"width": 390, "height": 844}) as page:
        go(page, screen="decoding", text="a")
        assert "dashed: dropped" in page.inner_text("#legend")
        assert page.locator("#legend").evaluate("e => e.getBoundingClientRect().right <= innerWidth")
        go(page, text=TEXT, mode="arcs")
        assert page.evaluate(
            "(() => { const svg = document.querySelector('svg[data-focus=map]').getBoundingClientRect();"
            "return [...document.querySelectorAll('svg[data-focus=map] .axis')]"
            ".every((e) => e.getBoundingClientRect().right <= svg.right + 1) })()"
        )


def test_branching_forces_a_token(browser, server):
    with opened(browser, server.address) as page:
        go(page, screen="decoding", text=TEXT, node=0)
        before = page.inner_text("#winner")
        button = page.locator("[data-focus='force 2']")
        token = button.inner_text()
        assert not before.startswith(token)
        button.click()
        settle(page)
        assert page.inner_text("#winner").split()[0] == token
        assert page.inner_text("#greedy").split()[0] == token
        page.get_by_role("button", name="remove the forced prefix").click()
        settle(page)
        assert page.inner_text("#winner") == before


def test_by_keyboard_alone(browser, server):
    with opened(browser, server.address) as page:
        press(page, "4")
        page.wait_for_selector("h2:text-is('Beam and greedy search in one tree')")
        reached = walk(page)
        for wanted in ("Search tree", "Beams:", "all dropped continuations", "Save as SVG"):
            assert any(wanted in name for name in reached), (wanted, reached)
        reach(page, "[data-focus=tree]")
        press(page, "ArrowLeft", "ArrowLeft")
        assert "node=" in location(page)
        assert page.evaluate("document.activeElement.dataset.focus") == "tree"
        press(page, "ArrowRight", "b")
        assert "prefix=" in location(page)
        reach(page, "[data-focus='Beams:']")
        press(page, "ArrowRight")
        assert "beams=5" in location(page)


def test_arrow_right_selects_a_drawn_child(browser, server):
    """A node whose likeliest child is hidden: the way leads to another, or nowhere."""
    found = query(server, "search", text=TEXT, beams=16)[0]["nodes"]
    with opened(browser, server.address) as page:
        go(page, screen="decoding", text=TEXT, beams=16)
        drawn = set(map(int, page.eval_on_selector_all("[data-node]", "all => all.map((e) => e.dataset.node)")))
        best = {}
        for n, one in enumerate(found):
            best[one["parent"]] = max(best.get(one["parent"], n), n, key=lambda child: found[child]["log_prob"])
        parent = next(n for n in sorted(drawn) if n in best and best[n] not in drawn)
        go(page, screen="decoding", text=TEXT, beams=16, node=parent)
        page.locator("[data-focus=tree]").press("ArrowRight")
        settle(page)
        assert int(page.get_attribute(".node.chosen", "data-node")) in drawn
        children = {n for n in drawn if found[n]["parent"] == parent}
        assert int(page.get_attribute(".node.chosen", "data-node")) in (children or {parent})


@pytest.mark.parametrize("name", ["pairs", "pronounce"])
def test_the_copied_python_runs(browser, pairs_run, capsys, name):
    run = pairs_run if name == "pairs" else Path(name)
    with serving(RunBackend(run)) as other, opened(browser, other.address) as page:
        go(page, screen="decoding", text=TEXT)
        code, log = page.inner_text("pre"), number(page, "#winner-log")
    exec(code, {})
    assert float(capsys.readouterr().out.split()[0]) == pytest.approx(log, abs=1e-4)


def test_a_saved_tree_is_the_same_tree(browser, server, pairs_run, tmp_path):
    page_file = qkv.look(pairs_run, TEXT).save(tmp_path / "page.html")
    seen = []
    for address, options in ((server.address, {}), (page_file.as_uri(), {"offline": True})):
        with opened(browser, address, **options) as page:
            go(page, screen="decoding", node=1, table=1, **({} if options else {"text": TEXT}))
            seen.append((page.locator("table").all_inner_texts(), page.inner_text("#winner")))
    assert seen[0] == seen[1]


def test_a_decoder_has_no_decoding_screen(recall_run):
    backend = RunBackend(recall_run)
    screens = respond(backend, "about", {}).record["screens"]
    assert [screen["name"] for screen in screens] == ["atlas", "stepwise", "versus"]
    with pytest.raises(ValueError, match="unknown request 'search'"):
        respond(backend, "search", {})


def test_bad_input(server):
    assert query_error(server, "search", text=TEXT, beams=17)[1] == "beams must be a whole number from 1 to 16, got 17"
    for prefix in ("2", "1", "0", "99", "x", "-1", "4.2", "9" * 30):
        assert "prefix must be token ids from 3 to" in query_error(server, "search", text=TEXT, prefix=prefix)[1]
    assert "tokens, got 23" in query_error(server, "search", text=TEXT, prefix=".".join(["4"] * 23))[1]
    assert "tokens, got 23" in query_error(server, "node", text=TEXT, prefix=".".join(["4"] * 23))[1]
    assert query(server, "search", text=TEXT, prefix="..")[0]["nodes"][0]["token"] == "START"
