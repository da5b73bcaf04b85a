"""Screen 3 in a real browser, its numbers against the library's own calls."""

import csv
import io

import pytest
import torch

import qkv
from qkv import runs
from qkv.explain import observe
from tests.web.client import query, query_error
from tests.web.pages import download, go, location, number, opened, press, reach, walk

TEXT = "fabcde"


@pytest.fixture(scope="module")
def record(pairs_run):
    """The second encoder layer, on the same text."""
    _, task, model = runs.load(pairs_run)
    return observe(model, task.data.sources.encode(TEXT), [])[1]


@pytest.mark.parametrize("kind", ["taylor", "elu", "linear"])
def test_values_match_the_library(browser, server, record, kind):
    q, k = record.call.q.double(), record.call.k.double()
    with opened(browser, server.address) as page:
        go(page, screen="versus", text=TEXT, site=1, head=2, row=3, column=4, kind=kind)
        expected = float(qkv.weights(q, k, kind=kind)[0, 2, 3, 4])
        exact = float(qkv.weights(q, k)[0, 2, 3, 4])
        assert number(page, "#implied") == pytest.approx(expected, abs=6e-5)
        assert number(page, "#exact") == pytest.approx(exact, abs=6e-5)
        assert number(page, "#difference") == pytest.approx(expected - exact, abs=1.2e-4)
        assert page.locator("#strip .failed").count() == 0
        assert page.locator("#strip .check").first.inner_text().startswith("✓ recurrence = implied matrix · v within")


def test_rows_of_the_three_maps_align(browser, server):
    """Labels of one letter leave the first picture no larger cells than the others."""
    with opened(browser, server.address) as page:
        go(page, screen="versus", text=TEXT, site=1, kind="elu")
        boxes = [
            page.locator(f"[data-focus={name}] rect.frame").first.bounding_box()
            for name in ("softmax", "elu", "difference")
        ]
        for side in ("y", "width", "height"):
            assert [box[side] for box in boxes] == pytest.approx([boxes[0][side]] * 3, abs=0.5)


@pytest.mark.parametrize("kind", ["elu", "linear", "taylor(order=4)"])
def test_both_maps_have_one_scale(browser, server, kind):
    with opened(browser, server.address) as page:
        go(page, screen="versus", text=TEXT, site=1, kind=kind)
        ranges = [
            [text for text in page.locator(f"[data-focus='{name}'] .axis").all_text_contents() if " to " in text]
            for name in ("softmax", kind)
        ]
        assert ranges[0] == ranges[1] != []
        box = page.locator(".formula")
        assert box.evaluate("e => e.scrollWidth <= e.clientWidth")


def test_the_copying_problem_and_its_slider(browser, server):
    """The literals are the problem's, from independent arithmetic."""
    with opened(browser, server.address) as page:
        go(page, screen="versus", text=TEXT)
        assert number(page, "#copy-weight") == pytest.approx(0.665241, abs=1e-6)
        assert number(page, "#copy-error") == pytest.approx(0.3067, abs=1e-4)
        page.get_by_role("slider").focus()
        press(page, *["ArrowRight"] * 4)
        assert "quarters=8" in location(page)
        assert number(page, "#copy-weight") == pytest.approx(0.981690, abs=1e-6)
        assert number(page, "#copy-error") == pytest.approx(0.01815, abs=1e-5)


def test_all_pictures_can_be_exported_and_shown_as_tables(browser, server, record):
    with opened(browser, server.address) as page:
        go(page, screen="versus", text=TEXT, site=1, head=0, kind="elu", table=1)
        assert page.locator("table").count() == page.locator("figure").count() == 3
        for picture in page.locator("section:has(figure)").all():
            with page.expect_download() as waiting:
                picture.get_by_role("button", name="Save as PNG").click()
            assert waiting.value.path().read_bytes()[:4] == b"\x89PNG"
        _, data = download(page, "Save as CSV")
        rows = list(csv.reader(io.StringIO(data.decode())))[1:]
        implied = torch.tensor([float(row[4]) for row in rows]).reshape(6, 6)
        expected = qkv.weights(record.call.q, record.call.k, kind="elu")[0, 0]
        torch.testing.assert_close(implied, expected, rtol=0, atol=1e-5)


def test_by_keyboard_alone(browser, server):
    with opened(browser, server.address) as page:
        press(page, "3")
        page.wait_for_selector("h2:has-text('softmax versus taylor')")
        reached = walk(page)
        for wanted in ("linear", "difference. 6 rows", "Save as SVG", "norm of a, b, c and d"):
            assert any(wanted in name for name in reached), (wanted, reached)
        reach(page, "[data-focus=difference]")
        press(page, "ArrowDown")
        assert "row=1" in location(page)
        assert page.evaluate("document.activeElement.dataset.focus") == "difference"


def test_bad_input(server):
    assert "unknown kind 'softmix'" in query_error(server, "versus", text=TEXT, kind="softmix")[1]
    assert "unknown kind" in query_error(server, "versus", text=TEXT, kind="taylor(order=9999)")[1]
    assert query_error(server, "versus", text=TEXT, head=-1)[1] == "head must be a whole number from 0 to 2, got -1"
    assert query(server, "kinds")[0]["kinds"][:2] == ["taylor", "taylor(order=4)"]
