"""Every screen at three widths, light and dark: nothing is clipped, nothing is blank.

The pictures in docs/images, of the bundled pronouncer, and a word of which beam and greedy make different things; of
all that this draws, three are kept:

    export QKV_SCREENSHOTS=build/screenshots QKV_SCREENSHOT_RUN=pronounce QKV_SCREENSHOT_DECODED=nguyen
    pytest tests/web/test_screenshots.py
"""

import os
from pathlib import Path

import pytest

from qkv.web.backend import RunBackend
from tests.web.pages import go, location, opened, settle
from tests.web.runs import serving

pytestmark = pytest.mark.slow

SCREENS = {
    "atlas": {"row": 2},
    "stepwise": {"row": 2, "step": 5},
    "versus": {"head": 0, "row": 4, "column": 2},
    "decoding": {"text": os.environ["QKV_SCREENSHOT_DECODED"]} if "QKV_SCREENSHOT_DECODED" in os.environ else {},
}


@pytest.fixture(scope="module")
def backend(pairs_run):
    """The run of the pictures: that of the tests, or one to show."""
    return RunBackend(Path(os.environ.get("QKV_SCREENSHOT_RUN", pairs_run)))


@pytest.fixture(scope="module")
def shown(backend):
    with serving(backend) as server:
        yield server


def first_decoder_layer(backend):
    """Return the index of causal self-attention, where a linear kind has a state."""
    sites = backend.view_model({"text": backend.about()["text"]}).sites
    return [site.name for site in sites].index("decoder 1")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 768, 390])
def test_every_screen_fits(browser, backend, shown, tmp_path, width, scheme):
    folder = Path(os.environ.get("QKV_SCREENSHOTS", tmp_path))
    folder.mkdir(exist_ok=True)
    size = {"width": width, "height": 840}
    screens = {**SCREENS, "versus": {"site": first_decoder_layer(backend), **SCREENS["versus"]}}
    with opened(browser, shown.address, viewport=size, color_scheme=scheme, reduced_motion="reduce") as page:
        for screen, state in screens.items():
            go(page, screen=screen, **state)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            cut = page.evaluate(
                "[...document.querySelectorAll('.card button, .card select, .card h2, header button')]"
                ".filter((e) => !e.closest('.picture, .scroll, .atlas, #tabs'))"
                ".filter((e) => e.getBoundingClientRect().right > innerWidth).map((e) => e.textContent)"
            )
            assert cut == []
            small = page.evaluate(
                "[...document.querySelectorAll('main button, aside button')].filter((e) => !e.closest('.atlas'))"
                ".filter((e) => e.offsetHeight < 24).map((e) => e.textContent)"
            )
            assert small == []
            path = folder / f"workbench-{screen}-{width}-{scheme}.png"
            page.screenshot(path=path)
            assert path.stat().st_size > 10_000


def test_the_theme_can_be_chosen(browser, shown):
    with opened(browser, shown.address, color_scheme="light") as page:
        background = "getComputedStyle(document.body).backgroundColor"
        light = page.evaluate(background)
        page.get_by_role("button", name="Light or dark").click()
        settle(page)
        assert page.evaluate(background) != light
        assert "theme=dark" in location(page)


def contrast(page, selector):
    """WCAG's contrast of the text of an element with its nearest background."""
    return page.eval_on_selector(
        selector,
        """e => {
          const parse = (c) => c.match(/[\\d.]+/g).map(Number);
          const light = (c) => parse(c).slice(0, 3).map((v) => v / 255)
            .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
            .reduce((sum, v, n) => sum + v * [0.2126, 0.7152, 0.0722][n], 0);
          let box = e;
          while (box && (parse(getComputedStyle(box).backgroundColor)[3] === 0)) box = box.parentElement;
          const back = getComputedStyle(box ?? document.body).backgroundColor;
          const [a, b] = [light(getComputedStyle(e).color), light(back)];
          return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        }""",
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(browser, shown, scheme):
    with opened(browser, shown.address, color_scheme=scheme) as page:
        for selector in (".note", ".quiet", ".readout .number", ".check", "button.main", "#tabs button", "h3", "dd"):
            assert contrast(page, selector) >= 4.5, selector
