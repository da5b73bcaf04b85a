"""Responses that come late or fail; sliders and fields in use while the page redraws."""

import pytest

from tests.web.pages import go, location, opened, settle, wait_until

TEXT = "fabcde"
FAILED = "Failed to load resource"  # the browser notes each in its console
REJECTED = {"status": 400, "content_type": "application/json", "body": '{"error": "too large to compute"}'}


def hold(page, pattern):
    """Hold responses back; return the list of pending routes."""
    waiting = []

    def keep(route):  # playwright takes no method of a list
        waiting.append(route)

    page.route(pattern, keep)
    return waiting


def test_a_late_answer_does_not_draw_over_another_screen(browser, server):
    with opened(browser, server.address) as page:
        go(page, text=TEXT)
        waiting, aborted = hold(page, "**/api/versus"), []
        page.on("requestfailed", lambda request: aborted.append(request.url))
        page.keyboard.press("3")
        page.wait_for_selector("#main.waiting")
        page.wait_for_selector("#announcement:has-text('Computing')", state="attached")
        wait_until(page, lambda: waiting)
        page.keyboard.press("2")
        page.wait_for_selector("h2:has-text('Query and keys')")
        settle(page)
        assert page.locator("#main.waiting").count() == 0
        wait_until(page, lambda: aborted)
        assert aborted == [waiting[0].request.url]  # so that the server stops computing it
        page.wait_for_timeout(100)
        assert "Query and keys" in page.inner_text("h2")
        assert "Query (generated)" in page.inner_text("#side")
        assert page.inner_text("#announcement") == ""


def slide(page, slider, part, steps=12):
    """Drag a slider from its middle to a part of its width."""
    box = slider.bounding_box()
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] / 2, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * part, y, steps=steps)
    page.mouse.up()
    settle(page)


@pytest.mark.parametrize(
    ("state", "name", "chosen"),
    [
        ({"screen": "decoding"}, "Beams:", "beams=16"),
        ({"screen": "versus"}, "β", "quarters=16"),
        ({"mode": "arcs"}, "Lines", "top=8"),
        ({"screen": "stepwise", "step": 5}, "Scores times", "score_factor=60"),
    ],
)
def test_sliders_can_be_dragged(browser, server, state, name, chosen):
    with opened(browser, server.address) as page:
        go(page, text=TEXT, **state)
        slider = page.get_by_role("slider", name=name)
        slider.scroll_into_view_if_needed()
        slider.evaluate("e => { e.untouched = true }")
        slide(page, slider, 1.0)
        assert chosen in location(page)
        assert slider.evaluate("e => e.untouched")
        assert slider.evaluate("e => e.closest('.field').querySelector('output').textContent") == slider.get_attribute(
            "aria-valuetext"
        )


def test_fast_arrow_keys_all_count(browser, server):
    with opened(browser, server.address) as page:
        go(page, screen="decoding", text=TEXT)
        slider = page.get_by_role("slider", name="Beams:")
        slider.focus()
        for _ in range(6):
            page.keyboard.press("ArrowRight")
        settle(page)
        assert "beams=10" in location(page)
        assert slider.input_value() == "10"
        go(page, screen="decoding", text=TEXT, beams=2)
        assert slider.input_value() == "2"


def test_typed_text_survives_redraws(browser, server):
    with opened(browser, server.address) as page:
        go(page, text=TEXT)
        page.fill("#text", "abc")
        page.fill("#answer", "C B")
        page.get_by_role("button", name="cross 2, head 2").click()
        page.wait_for_selector("h2:text-is('cross 2, head 2')")
        settle(page)
        page.get_by_role("button", name="Light or dark").click()
        page.set_viewport_size({"width": 1000, "height": 900})
        settle(page)
        assert (page.input_value("#text"), page.input_value("#answer")) == ("abc", "C B")
        page.get_by_role("button", name="Show (Ctrl-Enter)").click()
        page.wait_for_selector("#readout:has-text('C (1) attends to')")
        assert "text=abc" in location(page)
        go(page, text=TEXT)
        assert (page.input_value("#text"), page.input_value("#answer")) == (TEXT, "")


def reject_order_4(route):
    if "order=4" in route.request.post_data:
        route.fulfill(**REJECTED)
    else:
        route.continue_()


def test_a_rejected_choice_can_be_undone(browser, server):
    with opened(browser, server.address) as page:
        page.intended.append(FAILED)
        go(page, screen="versus", text=TEXT)
        page.route("**/api/versus", reject_order_4)
        page.get_by_role("button", name="taylor(order=4)").click()
        page.wait_for_selector(".error:has-text('too large to compute')")
        page.reload()
        page.wait_for_selector(".error")
        page.get_by_role("button", name="elu", exact=True).click()
        page.wait_for_selector("h2:has-text('softmax versus elu')")
        page.route("**/api/search", lambda route: route.fulfill(**REJECTED))
        page.keyboard.press("4")
        page.wait_for_selector(".error")
        settle(page)
        assert page.get_by_role("slider", name="Beams:").count() == 1


def test_an_address_with_values_out_of_range(browser, server):
    with opened(browser, server.address) as page:
        page.intended.append(FAILED)
        go(page, screen="decoding", text=TEXT, beams=99, length_penalty=-3, prefix="x.1.")
        assert page.get_by_role("slider", name="Beams:").input_value() == "16"
        assert page.locator("#winner").count() == 1
        go(page, screen="decoding", text=TEXT, prefix="999")
        page.get_by_role("button", name="remove the forced prefix").click()
        page.wait_for_selector("#winner")
        go(page, text=TEXT, mode="toString", sort="constructor")
        assert page.locator("[data-focus=map]").count() == 1


def test_show_requests_again_after_a_failure(browser, server):
    with opened(browser, server.address) as page:
        page.intended.append(FAILED)
        go(page, text=TEXT)
        page.route("**/api/*", lambda route: route.abort())
        page.fill("#text", "abc")
        page.keyboard.press("Control+Enter")
        page.wait_for_selector(".error:has-text('The server does not answer')")
        settle(page)
        page.locator("#help").press("]")  # asks as well, and fails without a word
        page.unroute("**/api/*")
        page.get_by_role("button", name="Show (Ctrl-Enter)").click()
        page.wait_for_selector("#weight")


def test_another_input_drops_the_forced_prefix(browser, server):
    with opened(browser, server.address) as page:
        go(page, screen="decoding", text=TEXT, prefix="5", beams=3)
        page.get_by_role("button", name="Show (Ctrl-Enter)").click()
        settle(page)
        assert "prefix=5" in location(page)
        page.fill("#text", "abc")
        page.keyboard.press("Control+Enter")
        settle(page)
        assert "prefix" not in location(page)
        assert "beams=3" in location(page)
