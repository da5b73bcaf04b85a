"""Back, Forward and reloading, from one screen to another."""

import pytest

import qkv
from tests.web.pages import DRAWN, location, opened, settle

SCREENS = ["atlas", "stepwise", "versus", "decoding"]


def shown(page):
    """The screen that is marked in the tabs; it is drawn."""
    settle(page)
    return page.get_attribute("#tabs [aria-selected=true]", "data-focus")


def move(page, act, *arguments):
    """Do something that redraws; return the screen that is shown then."""
    settle(page)
    before = page.get_attribute("#main", "data-drawn")
    act(*arguments)
    page.wait_for_selector(f'{DRAWN}:not([data-drawn="{before}"])')
    return shown(page)


def entries(page):
    return page.evaluate("history.length")


def test_every_screen_is_a_history_entry(browser, server):
    with opened(browser, server.address) as page:
        first, start = entries(page), location(page)
        assert [move(page, page.keyboard.press, key) for key in "234"] == SCREENS[1:]
        assert entries(page) == first + 3
        assert [move(page, page.go_back) for _ in range(3)] == SCREENS[2::-1]
        assert location(page) == start
        assert [move(page, page.go_forward) for _ in range(2)] == SCREENS[1:3]
        page.reload()
        assert shown(page) == "versus"
        assert move(page, page.go_back) == "stepwise"
        assert move(page, page.go_forward) == "versus"


def test_choices_add_no_history_entry_but_are_restored(browser, server):
    with opened(browser, server.address) as page:
        move(page, page.keyboard.press, "2")
        first = entries(page)
        move(page, page.keyboard.press, "ArrowRight")
        move(page, page.keyboard.press, "t")
        assert entries(page) == first
        assert move(page, page.keyboard.press, "1") == "atlas"
        assert move(page, page.keyboard.press, "t") == "atlas"
        assert page.locator("table").count() == 0
        assert move(page, page.go_back) == "stepwise"
        assert page.locator("table").count() == 1
        assert "step=1" in location(page)


def test_the_current_screen_adds_no_history_entry(browser, server):
    with opened(browser, server.address) as page:
        first = entries(page)
        move(page, page.keyboard.press, "1")
        page.keyboard.press("1")
        page.click("#tabs [data-focus=atlas]")
        settle(page)
        assert entries(page) == first
        assert "screen=atlas" in location(page)


@pytest.mark.parametrize("key", ["ArrowRight", "ArrowLeft"])
def test_the_tabs(browser, server, key):
    """By the mouse and by arrows; Alt with an arrow is the browser's own."""
    with opened(browser, server.address) as page:
        first = entries(page)
        assert move(page, page.click, "#tabs [data-focus=versus]") == "versus"
        neighbor = {"ArrowRight": "decoding", "ArrowLeft": "stepwise"}[key]
        assert move(page, page.keyboard.press, key) == neighbor
        assert entries(page) == first + 2
        page.evaluate(
            "key => document.activeElement.dispatchEvent("
            "new KeyboardEvent('keydown', { key, altKey: true, bubbles: true }))",
            key,
        )
        assert shown(page) == neighbor
        assert entries(page) == first + 2
        assert move(page, page.go_back) == "versus"
        assert move(page, page.go_back) == "atlas"


def test_a_link_to_a_screen(browser, server):
    with opened(browser, f"{server.address}#screen=decoding") as page:
        assert shown(page) == "decoding"
        assert move(page, page.keyboard.press, "3") == "versus"
        assert move(page, page.go_back) == "decoding"


def test_a_saved_page(browser, pairs_run, tmp_path):
    page_file = qkv.look(pairs_run, "fabcde").save(tmp_path / "page.html")
    with opened(browser, page_file.as_uri(), offline=True) as page:
        assert [move(page, page.keyboard.press, key) for key in "24"] == ["stepwise", "decoding"]
        assert [move(page, page.go_back) for _ in range(2)] == ["stepwise", "atlas"]
