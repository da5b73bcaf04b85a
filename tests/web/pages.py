"""A page in a real browser, with checks for errors and foreign requests."""

from contextlib import contextmanager

LOCAL = ("http://127.0.0.1:", "data:", "blob:", "file:///", "about:")


@contextmanager
def opened(browser, address, **options):
    """Open a page. At the end: no console errors, no dialogs, no request to another host."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, "accept_downloads": True, **options})
    page = context.new_page()
    requests, wrong = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: (wrong.append(f"dialog {dialog.message}"), dialog.dismiss()))
    page.wrong = wrong
    try:
        page.goto(address)
        settle(page)
        yield page
        assert wrong == []
        assert requests
        assert [url for url in requests if not url.startswith(LOCAL)] == []
    finally:
        context.close()


def settle(page):
    """Wait until the screen has drawn what was chosen."""
    page.wait_for_selector("#main[aria-busy=false]")


def go(page, **state):
    """Set the state by the address bar, as a link does."""
    before = page.get_attribute("#main", "data-drawn")
    page.evaluate("state => { location.hash = new URLSearchParams(state) }", {k: str(v) for k, v in state.items()})
    page.wait_for_selector(f'#main[aria-busy=false]:not([data-drawn="{before}"])')


def number(page, selector):
    """Return a number that the page shows."""
    return float(page.inner_text(selector).replace("\u2212", "-").replace(",", ""))


def download(page, label):
    """Return name and bytes of the file that a button saves."""
    with page.expect_download() as waiting:
        page.get_by_role("button", name=label).first.click()
    return waiting.value.suggested_filename, waiting.value.path().read_bytes()


def reach(page, selector, presses=150):
    """Press Tab until the focus is on the selected element."""
    for _ in range(presses):
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"{selector} is not reached by {presses} tabs")


def walk(page, presses=50):
    """Return the names of all elements that Tab reaches; each must have a visible focus ring."""
    reached = set()
    for _ in range(presses):
        page.keyboard.press("Tab")
        name, ring = page.evaluate(
            "(() => { const e = document.activeElement; const name = e.getAttribute('aria-label') ?? e.textContent;"
            "return [e === document.body ? '' : name.trim(), getComputedStyle(e).outlineStyle] })()"
        )
        assert not name or ring != "none", name
        reached.add(name)
    return reached
