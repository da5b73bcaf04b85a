"""A page in a real browser, with checks for errors and foreign requests.

The browser works while a test does: what a test reads must be there already. So a test waits with `settle`, `press`,
`wait_until` or for a selector after each act, and reads the address with `location`: `page.url` follows later.
"""

from contextlib import contextmanager

LOCAL = ("http://127.0.0.1:", "data:", "blob:", "file:///", "about:")
TIMEOUT = 60_000  # milliseconds; a busy machine takes its time
DRAWN = "#main[aria-busy=false]"
# events that came before run their handlers before the second frame
TWO_FRAMES = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done())))"
SET_HASH = """state => new Promise((done) => {
  const hash = `#${new URLSearchParams(state)}`;
  if (hash === location.hash) return done();
  addEventListener("hashchange", () => done(), { once: true });
  location.hash = hash;
})"""


@contextmanager
def opened(browser, address, **options):
    """Open a page. At the end: no console errors but `page.intended`, no dialogs, no request to another host."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, "accept_downloads": True, **options})
    context.set_default_timeout(TIMEOUT)
    page = context.new_page()
    requests, wrong = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: (wrong.append(f"dialog {dialog.message}"), dialog.dismiss()))
    page.intended = []  # parts of the messages that a test causes
    try:
        page.goto(address)
        settle(page)
        yield page
        page.evaluate(TWO_FRAMES)  # messages that are under way arrive before the answer
        assert [text for text in wrong if not any(part in text for part in page.intended)] == []
        assert requests
        assert [url for url in requests if not url.startswith(LOCAL)] == []
    finally:
        context.close()


def settle(page):
    """Wait until the screen has drawn what was chosen."""
    page.wait_for_selector(DRAWN)
    page.evaluate(TWO_FRAMES)
    page.wait_for_selector(DRAWN)


def press(page, *keys):
    """Press keys one after the other, each on a screen that is drawn."""
    for key in keys:
        settle(page)
        page.keyboard.press(key)
    settle(page)


def go(page, **state):
    """Set the state by the address bar, as a link does."""
    settle(page)
    page.evaluate(SET_HASH, {k: str(v) for k, v in state.items()})
    settle(page)


def location(page):
    """Return the address as the page itself knows it."""
    return page.evaluate("location.href")


def wait_until(page, condition):
    """Wait until a function of the test is true, while playwright delivers events."""
    for _ in range(TIMEOUT // 20):
        if condition():
            return
        page.wait_for_timeout(20)
    raise AssertionError(f"not within {TIMEOUT} milliseconds")


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
    settle(page)
    for _ in range(presses):
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"{selector} is not reached by {presses} tabs")


def walk(page, presses=50):
    """Return the names of all elements that Tab reaches; each must have a visible focus ring."""
    reached = set()
    settle(page)
    for _ in range(presses):
        page.keyboard.press("Tab")
        name, ring = page.evaluate(
            "(() => { const e = document.activeElement; const name = e.getAttribute('aria-label') ?? e.textContent;"
            "return [e === document.body ? '' : name.trim(), getComputedStyle(e).outlineStyle] })()"
        )
        assert not name or ring != "none", name
        reached.add(name)
    return reached
