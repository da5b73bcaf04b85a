"""Screen 1 in a real browser, its numbers against the library's own calls."""

import csv
import io
import struct
import xml.etree.ElementTree as ET

import pytest
import torch

from qkv import inference, runs
from qkv.explain import observe
from qkv.web.backend import RunBackend
from qkv.web.external import TensorBackend
from qkv.web.screens.atlas import pool
from tests.web.client import query
from tests.web.pages import download, go, location, number, opened, press, reach, settle, wait_until, walk
from tests.web.runs import serving
from tests.web.screens.test_printed_formulas import decoder

TEXT = "fabcde"
FIRST_COLUMN = """async () => {
  const picture = new Image();
  picture.src = document.querySelector("#main svg image").getAttribute("href");
  await picture.decode();
  const canvas = new OffscreenCanvas(picture.width, picture.height);
  const pen = canvas.getContext("2d");
  pen.drawImage(picture, 0, 0);
  const bytes = pen.getImageData(0, 0, 1, picture.height).data;
  return Array.from({ length: picture.height }, (_, i) => [...bytes.slice(4 * i, 4 * i + 4)]);
}"""


@pytest.fixture(scope="module")
def records(pairs_run):
    """The library's record of the same pass, on the tokens that the model generates."""
    _, task, model = runs.load(pairs_run)
    ((found,),) = inference.predict_targets(model, task.data.sources, [list(TEXT)], inference.Search())
    return observe(model, task.data.sources.encode(TEXT), list(found.tokens))


def test_the_weight_on_the_page_matches_the_library(browser, server, records):
    with opened(browser, server.address) as page:
        for site, head, i, j in ((0, 1, 2, 3), (3, 2, 1, 0), (5, 0, 0, 5)):
            go(page, text=TEXT, site=site, head=head, row=i, column=j)
            expected = float(records[site].call.weights()[0, head, i, j])
            assert number(page, "#weight") == pytest.approx(expected, abs=6e-5)
        go(page, text=TEXT, site=0, head=-1, row=2, column=3)
        assert number(page, "#weight") == pytest.approx(float(records[0].call.weights()[0, :, 2, 3].mean()), abs=6e-5)


def test_rows_are_summed(browser, server, records):
    with opened(browser, server.address) as page:
        go(page, text=TEXT, site=0, head=0, row=1, column=2, rows="1.3.4")
        expected = float(records[0].call.weights()[0, 0, [1, 3, 4], 2].sum())
        assert number(page, "#summed") == pytest.approx(expected, abs=6e-5)


def test_the_summaries_and_thumbnails(server, records):
    record, tensors = query(server, "thumbnails", text=TEXT)
    head = records[0].call.weights()[0, 1]
    assert record["summaries"][0][1]["first"] == pytest.approx(float(head[:, 0].mean()), abs=1e-6)
    shown = tensors["thumbnails"][36:72].reshape(6, 6)
    assert torch.equal(shown, (head / head.max() * 255).round().long())


@pytest.mark.parametrize("kind", ["delta+forget+write(largest=2)", "linear+channel(rank=3)"])
def test_gates_of_a_head_are_curves(browser, kind):
    backend = decoder(kind, "none")
    options = backend.records[0].head(1).options
    kept = (-options["decay"][0, 0]).exp()
    with serving(backend) as server, opened(browser, server.address) as page:
        go(page, head=1, row=2)
        shown = [float(x) for x in page.locator("#gates .number").all_inner_texts()]
        expected = [kept[2]] if kept.dim() == 1 else [kept[2].mean(), kept[2].min(), kept[2].max()]
        expected += [options["beta"][0, 0, 2]] if "beta" in options else []
        assert shown == pytest.approx([float(x) for x in expected], abs=6e-5)
        assert page.locator("#gates polyline").count() == len(expected)
        go(page, head=-1)
        assert page.locator("#gates").count() == 0


def test_a_head_without_gates_has_no_curves(browser, server):
    with opened(browser, server.address) as page:
        assert page.locator("#gates").count() == 0


def test_negative_weights_have_colors_of_their_own(browser):
    """The first column of the map is blue where a weight is positive, and orange where it is negative."""
    weights = torch.tensor([[1.0, 0.0], [-1.0, 0.5]])
    with (
        serving(TensorBackend([weights[None]], {"tokens": ["a", "b"]})) as server,
        opened(browser, server.address) as page,
    ):
        assert page.get_by_text("\u22121.000 to 1.000").count() == 1
        pixels = page.evaluate(FIRST_COLUMN)
        assert pixels[0][2] > pixels[0][0] + 50  # blue
        assert pixels[1][0] > pixels[1][2] + 50  # orange


def test_thumbnails_show_magnitudes():
    weights = torch.zeros(50, 50)
    weights[10, 10], weights[40, 3] = -1.0, 0.5
    small = pool(weights, 10)
    assert (small[2, 2], small[8, 0]) == (1.0, 0.5)


def test_checks_are_green_and_turn_red(browser, server):
    with opened(browser, server.address) as page:
        checks = page.locator("#strip .check").all_inner_texts()
        assert len(checks) == 2
        assert checks[0].startswith("✓ rows sum to 1 within")
        assert checks[1].startswith("✓ weights · v = fast path within")
    broken = torch.full((2, 5, 5), 0.2)
    broken[1, 3, 3] = 0.9
    with serving(TensorBackend([broken], {"tokens": list("abcde")})) as other, opened(browser, other.address) as page:
        assert page.locator("#strip .failed").count() == 0
        go(page, head=1)
        assert page.locator("#strip .check.failed").inner_text() == "✗ wrong: rows sum to 1 within 0.700000"


@pytest.mark.parametrize("mode", ["map", "arcs", "text"])
def test_every_picture_can_be_exported(browser, server, records, mode):
    with opened(browser, server.address) as page:
        go(page, text=TEXT, site=1, head=1, row=2, column=3, mode=mode)
        name, data = download(page, "Save as SVG")
        assert name == "encoder-1-head-2.svg".replace("1", "2", 1)
        tree = ET.fromstring(data)
        texts = ["".join(element.itertext()) for element in tree.iter("{http://www.w3.org/2000/svg}text")]
        assert all(letter in texts for letter in TEXT)
        assert any("keys" in text or "query" in text for text in texts)
        name, data = download(page, "Save as PNG")
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        width, height = struct.unpack(">II", data[16:24])
        assert (width, height) == pytest.approx((2 * float(tree.get("width")), 2 * float(tree.get("height"))), abs=2)
        name, data = download(page, "Save as CSV")
        rows = list(csv.reader(io.StringIO(data.decode())))
        assert rows[0][1:] == list(TEXT)
        values = torch.tensor([[float(cell) for cell in row[1:]] for row in rows[1:]])
        torch.testing.assert_close(values, records[1].call.weights()[0, 1], rtol=0, atol=1e-6)


def test_the_table_holds_the_values_of_the_picture(browser, server, records):
    with opened(browser, server.address) as page:
        go(page, text=TEXT, site=0, head=2, table=1)
        cells = [
            [float(c.replace("\u2212", "-")) for c in row.locator("td").all_inner_texts()]
            for row in page.locator("tbody tr").all()
        ]
        torch.testing.assert_close(torch.tensor(cells), records[0].call.weights()[0, 2], rtol=0, atol=6e-5)


def test_the_copied_python_prints_the_number(browser, server, records, capsys):
    with opened(browser, server.address, permissions=["clipboard-read", "clipboard-write"]) as page:
        go(page, text=TEXT, site=4, head=1, row=1, column=2)
        page.get_by_role("button", name="Copy as Python").click()
        page.wait_for_selector("#announcement:has-text('Copied.')", state="attached")
        code = page.evaluate("navigator.clipboard.readText()")
    exec(code, {})
    printed = capsys.readouterr().out
    assert float(printed.removeprefix("tensor(").split(",")[0].rstrip(")\n")) == pytest.approx(
        float(records[4].call.weights()[0, 1, 1, 2]), abs=1e-4
    )


def test_the_address_holds_the_state(browser, server):
    with opened(browser, server.address) as page:
        go(page, text=TEXT, site=1, head=2, row=3, column=1, mode="arcs")
        heading, readout = page.inner_text("h2"), page.inner_text("#readout")
        link = location(page)
        page.goto("about:blank")
        page.goto(link)
        settle(page)
        assert (page.inner_text("h2"), page.inner_text("#readout")) == (heading, readout)
        assert heading == "encoder 2, head 3"


def test_by_keyboard_alone(browser, server):
    with opened(browser, server.address) as page:
        page.keyboard.press("i")
        assert page.evaluate("document.activeElement.id") == "text"
        page.keyboard.press("Control+A")
        page.keyboard.type(TEXT)
        page.keyboard.press("Control+Enter")
        settle(page)
        reached = walk(page)
        for wanted in (
            "Attention atlas",
            "cross 1, head 1",
            "arcs",
            "Attention weights of cross 1",
            "Save as SVG",
            "Copy as Python",
            "Keys and help",
        ):
            assert any(wanted in name for name in reached), (wanted, reached)
        reach(page, '.atlas [tabindex="0"]')
        for keys, found in (
            (("ArrowRight", "Enter"), "cross 1, head 2"),
            (("ArrowLeft", "Enter"), "cross 1, head 1"),
            (("[",), "decoder 2, head 1"),
            (("}",), "decoder 2, head 2"),
            (("[",), "decoder 1, head 2"),
            (("[",), "encoder 2, head 2"),
        ):
            press(page, *keys)
            page.wait_for_selector(f"h2:text-is('{found}')")
        reach(page, "[data-focus=map]")
        press(page, "ArrowDown", "p", "ArrowDown", "ArrowRight", "p")
        assert page.evaluate("document.activeElement.dataset.focus") == "map"
        assert "row=2" in location(page)
        assert "rows=1.2" in location(page)
        assert page.locator("#summed").count() == 1
        press(page, "t")
        page.wait_for_selector("table")
        press(page, "?")
        page.wait_for_selector("dialog[open]")
        page.keyboard.press("Escape")
        page.wait_for_selector("dialog:not([open])", state="attached")


def test_a_rank_counts_what_can_be_seen(browser, server):
    with opened(browser, server.address) as page:
        for site, among in ((0, 6), (2, 3)):
            go(page, text=TEXT, answer="E D C B A F", site=site, row=2, column=1)
            assert page.inner_text("#rank").endswith(f" of {among}")


def test_screen_reader_announcements(browser, server, records):
    """A choice keeps the focus, and arrows in a picture tell the cell."""
    with opened(browser, server.address) as page:
        go(page, text=TEXT, site=0, head=0, row=1, column=1)
        button = page.get_by_role("button", name="arcs")
        button.press("Enter")
        page.wait_for_selector("[aria-label^='Lines from']")
        settle(page)
        assert page.evaluate("document.activeElement.textContent") == "arcs"
        page.locator("svg[data-focus=map]").press("ArrowRight")
        weight = float(records[0].call.weights()[0, 0, 1, 2])
        said = f"a (2) attends to b (3), weight {weight:.4f}"
        wait_until(page, lambda: page.inner_text("#announcement") == said)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_ink_can_be_read_on_every_color(browser, server, scheme):
    with opened(browser, server.address, color_scheme=scheme) as page:
        worst = page.evaluate(
            """async () => {
              const { paint } = await import("/static/color.js");
              const parts = (text) => (text.startsWith("#") ? [1, 3, 5].map((n) => parseInt(text.slice(n, n + 2), 16))
                : text.match(/\\d+/g).map(Number));
              const light = (text) => parts(text).map((v) => v / 255)
                .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
                .reduce((sum, v, n) => sum + v * [0.2126, 0.7152, 0.0722][n], 0);
              return Math.min(...Array.from({ length: 256 }, (_, n) => {
                const { fill, ink } = paint(n, 255, false);
                const [a, b] = [light(fill), light(ink)];
                return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
              }));
            }"""
        )
        assert worst >= 4.5


def test_error_messages_on_the_page(browser, server):
    with opened(browser, server.address) as page:
        page.intended.append("400 (Bad Request)")  # the browser notes each
        page.fill("#text", "a" * 30)
        page.get_by_role("button", name="Show (Ctrl-Enter)").click()
        page.wait_for_selector(".error")
        assert "the text has 30 tokens; this model takes at most 24" in page.inner_text(".error")
        page.fill("#text", "   ")
        page.get_by_role("button", name="Show (Ctrl-Enter)").click()
        page.wait_for_selector(".error:has-text('the text is empty')")
        page.fill("#text", TEXT)
        page.keyboard.press("Control+Enter")
        page.wait_for_selector("#weight")


def test_a_stopped_server(browser, pairs_run):
    with serving(RunBackend(pairs_run)) as server, opened(browser, server.address) as page:
        page.intended.append("ERR_CONNECTION")
        server.stop()
        server.thread.join(20)
        page.fill("#text", TEXT)
        page.keyboard.press("Control+Enter")
        page.wait_for_selector(".error")
        assert "The server does not answer" in page.inner_text(".error")


def random_layers(layers, heads, tokens, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(heads, tokens, tokens, generator=generator) * 2).softmax(-1) for _ in range(layers)]


@pytest.mark.slow
def test_512_tokens_of_12_layers_and_12_heads(browser):
    """How fast it is, `benchmarks.workbench` measures; the number of elements is what makes it so."""
    layers = random_layers(12, 12, 512)
    backend = TensorBackend(layers, {"tokens": [f"t{n}" for n in range(512)]})
    with serving(backend) as server, opened(browser, server.address) as page:
        assert page.evaluate("document.querySelectorAll('*').length") < 5000
        assert page.locator(".atlas button").count() == 144
        go(page, site=11, head=7, row=300, column=200)
        assert number(page, "#weight") == pytest.approx(float(layers[11][7, 300, 200]), abs=6e-5)


@pytest.mark.slow
def test_2048_tokens_in_one_head(browser):
    layers = random_layers(1, 1, 2048)
    backend = TensorBackend(layers, {"tokens": [f"t{n}" for n in range(2048)]})
    with serving(backend) as server, opened(browser, server.address) as page:
        assert "each dot is the largest of 2 \u00d7 2 cells" in page.text_content("svg[data-focus=map]")
        go(page, row=1000, column=1500)
        assert number(page, "#weight") == pytest.approx(float(layers[0][0, 1000, 1500]), abs=6e-5)
        page.get_by_role("button", name="zoom to the cell").click()
        settle(page)
        expected = "rows 977\u20131024 of 2,048, columns 1477\u20131524 of 2,048"
        assert expected in page.text_content("svg[data-focus=map]")
        assert page.evaluate("document.querySelectorAll('*').length") < 5000
