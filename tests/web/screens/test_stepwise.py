"""Screen 2 in a real browser, its numbers against the library's own calls."""

import csv
import io

import pytest
import torch

from qkv import runs
from qkv.explain import observe
from qkv.web.backend import RunBackend
from tests.web.client import query_error
from tests.web.pages import download, go, location, number, opened, press, reach, settle, walk
from tests.web.runs import serving

TEXT = "fabcde"


@pytest.fixture(scope="module")
def call(pairs_run):
    """Head 2 of the second encoder layer, as the model itself computed it."""
    _, task, model = runs.load(pairs_run)
    return observe(model, task.data.sources.encode(TEXT), [])[1].head(1)


def test_every_step_matches_the_library(browser, server, call):
    q, k, v = (x[0, 0].double() for x in (call.q, call.k, call.v))
    state = {"screen": "stepwise", "text": TEXT, "site": 1, "head": 1, "row": 3, "column": 4}
    with opened(browser, server.address) as page:
        go(page, **state, step=2)
        assert number(page, "#sum") == pytest.approx(float(q[3] @ k[4]), abs=6e-5)
        assert number(page, "#score") == pytest.approx(float(q[3] @ k[4]) * 8**-0.5, abs=6e-5)
        go(page, **state, step=4)
        scores = (q[3] @ k.mT) * 8**-0.5
        assert number(page, "#unnormalized") == pytest.approx(float((scores[4] - scores.max()).exp()), abs=6e-5)
        go(page, **state, step=7)
        assert number(page, "#weight") == pytest.approx(float(call.weights()[0, 0, 3, 4]), abs=6e-5)
        assert number(page, "#part") == pytest.approx(float(call.weights()[0, 0, 3, 4]) * float(v[4, 0]), abs=6e-5)
        assert number(page, "#output") == pytest.approx(float(call.output[0, 0, 3, 0]), abs=6e-5)
        checks = page.locator("#strip .check").all_inner_texts()
        assert checks[0].startswith("✓ output = the model's fast path within")
        assert checks[1].startswith("✓ weights = the definition within")


def test_products_add_up_to_the_score(browser, server, call):
    with opened(browser, server.address) as page:
        go(page, screen="stepwise", text=TEXT, site=1, head=1, row=3, step=1)
        _, data = download(page, "Save as CSV")
        rows = list(csv.reader(io.StringIO(data.decode())))[1:]
        assert [row[0] for row in rows] == list(TEXT)
        products = torch.tensor([[float(cell) for cell in row[1:]] for row in rows])
        torch.testing.assert_close(products, call.q[0, 0, 3] * call.k[0, 0], rtol=0, atol=1e-5)


def test_every_step_can_be_exported_and_shown_as_a_table(browser, server):
    with opened(browser, server.address) as page:
        for step in range(8):
            go(page, screen="stepwise", text=TEXT, step=step, table=1, row=1)
            assert page.locator("table").count() == page.locator("figure").count()
            name, data = download(page, "Save as PNG")
            assert name.startswith(f"step-{step + 1}-")
            assert data[:4] == b"\x89PNG"


def test_what_if_changes_a_copy_only(browser, server, call):
    with opened(browser, server.address) as page:
        go(page, screen="stepwise", text=TEXT, site=1, head=1, row=3, column=4, step=5, table=1, score_factor=30)
        cells = page.locator("table").nth(1).locator("tbody tr").all_inner_texts()
        shown = [float(line.split()[1].replace("\u2212", "-")) for line in cells]
        scores = (call.q[0, 0, 3] @ call.k[0, 0].mT) * 8**-0.5
        assert shown == pytest.approx((3 * scores).softmax(-1).tolist(), abs=1e-5)
        assert number(page, "#weight") == pytest.approx(float(call.weights()[0, 0, 3, 4]), abs=6e-5)


def test_by_keyboard_alone(browser, server):
    with opened(browser, server.address) as page:
        for key, expected in (
            ("2", "Query and keys"),
            ("ArrowRight", "Products"),
            ("ArrowRight", "Scores"),
            ("ArrowLeft", "Products"),
        ):
            press(page, key)
            page.wait_for_selector(f"h2:has-text('{expected}')")
        reached = walk(page)
        for wanted in ("next", "play", "Products of query and key", "Save as SVG", "5 exp"):
            assert any(wanted in name for name in reached), (wanted, reached)
        reach(page, "[data-focus=map]")
        press(page, "Home", "ArrowDown")
        assert "column=" in location(page)
        assert page.evaluate("document.activeElement.dataset.focus") == "map"


def test_playing_advances_and_stops(browser, server):
    """Stop stops where it is; at the end there is nothing left to stop. The test is the clock."""
    with opened(browser, server.address) as page:
        page.evaluate(
            "() => { setInterval = (act) => { tick = act; return 7 }; clearInterval = () => { tick = null } }"
        )
        go(page, screen="stepwise", text=TEXT)
        page.get_by_role("button", name="play").click()
        page.wait_for_selector("h2:has-text('Products')")
        page.evaluate("tick()")
        page.wait_for_selector("h2:has-text('Scores')")
        page.get_by_role("button", name="stop").click()
        page.wait_for_selector("button:text-is('play')")
        assert page.evaluate("tick") is None
        assert "step=2" in location(page)
        go(page, screen="stepwise", text=TEXT, step=6)
        page.get_by_role("button", name="play").click()
        page.wait_for_selector("h2:has-text('Output')")
        assert page.get_by_role("button", name="play").get_attribute("aria-pressed") == "false"


def test_arrows_scroll_where_there_is_something_to_scroll(browser, server):
    with opened(browser, server.address) as page:
        go(page, screen="stepwise", text=TEXT, step=2, table=1)
        for selector in ("pre", ".scroll"):
            page.locator(selector).first.press("ArrowRight")
            settle(page)
            assert "step=2" in location(page)


def test_a_taylor_model(browser, recall_run):
    backend = RunBackend(recall_run)
    with serving(backend) as server, opened(browser, server.address) as page:
        go(page, screen="stepwise", site=1, head=1, row=5, column=2, step=5)
        call = backend.view_model({"text": backend.about()["text"]}).records[1].head(1)
        assert number(page, "#weight") == pytest.approx(float(call.weights()[0, 0, 5, 2]), abs=6e-5)
        assert "polynomial" in page.inner_text(".stages")
        assert page.locator("#strip .failed").count() == 0
        go(page, screen="stepwise", site=1, head=1, row=2, column=4, step=5)
        assert "masked" in page.inner_text(".readout")


def test_bad_input(server):
    assert (
        query_error(server, "token_trace", text=TEXT, site=0, row=6)[1]
        == "row must be a whole number from 0 to 5, got 6"
    )
