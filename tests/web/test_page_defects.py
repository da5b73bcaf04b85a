"""Values near the pointer, fixed axes, long inputs, decoded tokens, what the model says, saved pages that hold less."""

import re

import pytest
import torch

import qkv
from qkv import runs
from qkv.data import Tokenizer
from qkv.data.byte_level import byte_level_text
from qkv.inference.text_input import PromptInput
from qkv.models import Decoder, DecoderConfig
from qkv.web import SavedPage, saved_page
from qkv.web.api import respond
from qkv.web.backend import RunBackend
from qkv.web.external import TensorBackend
from qkv.web.screens.atlas import color_range, thumbnails
from tests.web.client import query
from tests.web.pages import go, opened, press, settle
from tests.web.runs import serving
from tests.web.screens.test_printed_formulas import ModelBackend

TEXT = "fabcde"


def hover(page, selector, across=0.5, down=0.5):
    settle(page)
    box = page.locator(selector).first.bounding_box()
    page.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])
    return box


def test_the_value_is_shown_at_the_pointer(browser, server):
    """Also where the readout is below the window."""
    with opened(browser, server.address, viewport={"width": 1100, "height": 420}) as page:
        go(page, text=TEXT, site=0, row=0, column=0)
        box = hover(page, "svg[data-focus=map] image", 0.4, 0.1)
        tip = page.locator("#tip")
        tip.wait_for()
        assert re.fullmatch(r"\w \(\d\) attends to \w \(\d\), weight 0\.\d{4}", tip.inner_text())
        place = tip.bounding_box()
        assert abs(place["x"] - box["x"] - 0.4 * box["width"]) < 40
        assert place["y"] + place["height"] <= 420
        page.mouse.move(2, 2)
        tip.wait_for(state="hidden")
        for state, selector in (
            ({"mode": "arcs"}, "path.arc"),
            ({"mode": "text"}, "[data-focus=map] [data-tip]"),
            ({"screen": "stepwise", "step": 1}, "svg[data-focus=map] image"),
            ({"screen": "stepwise", "step": 2}, "svg .bar"),
        ):
            go(page, text=TEXT, site=0, row=1, **state)
            page.locator(selector).first.dispatch_event(
                "pointermove", {"clientX": 300, "clientY": 300, "bubbles": True}
            )
            hover(page, selector)
            tip.wait_for()
            assert re.search(r"\d\.\d", tip.inner_text()), state


def test_the_axes_of_what_if_are_fixed(browser, server):
    with opened(browser, server.address) as page:
        go(page, screen="stepwise", text=TEXT, step=5, score_factor=60, table=1)
        cells = page.locator("table").nth(1).locator("tbody tr").all_inner_texts()
        slopes = [float(line.split()[2].replace("\u2212", "-")) for line in cells]
        charts = page.locator("section:has-text('What if') svg svg")
        widths = charts.nth(1).locator("rect[rx]").evaluate_all("all => all.map((e) => e.width.baseVal.value)")
        room = charts.nth(1).evaluate("e => e.width.baseVal.value")
        for width, slope in zip(widths, slopes, strict=True):
            assert width <= max(1.01, 4 * slope * room)


def test_a_long_causal_comparison_is_drawn(browser):
    """520 tokens have 135,460 visible scores: too many to be arguments of one call."""
    config = DecoderConfig(dim=8, heads=1, layers=1, attention="softmax", positions="none", max_length=520)
    backend = ModelBackend(Decoder(config, 11), [3 + n % 7 for n in range(520)], tokens={"target": ["t"] * 520})
    with serving(backend) as server, opened(browser, server.address) as page:
        go(page, screen="versus", kind="taylor")
        assert "softmax versus taylor" in page.inner_text("h2")
        assert page.locator("h2:has-text('polynomial departs from exp')").count() == 1
        go(page, screen="versus", kind="elu")
        assert page.locator("h2:has-text('polynomial departs from exp')").count() == 0


def test_a_long_causal_map_is_not_blank(browser):
    weights = torch.ones(1, 200, 200).tril()
    weights /= weights.sum(-1, keepdim=True)
    backend = TensorBackend([weights], {"tokens": ["t"] * 200})
    shown = thumbnails(backend.view_model({})).tensors["thumbnails"].reshape(23, 23).float()
    assert color_range(weights[0]) == pytest.approx(1 / 100)
    assert shown.tril()[12:].max() > 120
    with serving(backend) as server, opened(browser, server.address) as page:
        dark = page.evaluate(
            """async () => {
              const picture = new Image();
              picture.src = document.querySelector("svg[data-focus=map] image").getAttribute("href");
              await picture.decode();
              const canvas = new OffscreenCanvas(picture.width, picture.height).getContext("2d");
              canvas.drawImage(picture, 0, 0);
              return [...canvas.getImageData(50, 150, 1, 1).data];
            }"""
        )
        assert min(dark[:3]) < 140
        legend = page.text_content("svg[data-focus=map]")
        assert "0 to 0.010, up to 1.000 as dark" in legend


def test_one_strong_weight_in_each_row_keeps_the_whole_range():
    assert color_range(torch.eye(64)) == 1
    assert color_range(torch.full((64, 64), torch.nan)) == 0


def test_byte_level_tokens_are_decoded():
    tokenizer = Tokenizer.train(["the statement of the cafe"] * 9, "bytes", 300)
    model = Decoder(DecoderConfig(dim=8, heads=1, layers=1, attention="softmax", max_length=64), len(tokenizer))
    text = "the statement caf\u00e9 \u05d0"
    found = PromptInput(model, tokenizer).read(text)
    assert "\u0120" not in "".join(found.tokens)
    assert any(token.startswith(" ") for token in found.tokens)
    assert "\u2039C3\u203a" in found.tokens or "\u00e9" in "".join(found.tokens)
    (candidates,) = PromptInput(model, tokenizer).candidates(found)
    logits = model.eval()(torch.tensor([found.ids]))[0, -1]
    best = logits.softmax(-1).topk(5)
    assert candidates.tokens == [tokenizer.token_text(n) for n in best.indices.tolist()]
    assert candidates.probabilities == pytest.approx(best.values.tolist(), abs=1e-5)
    assert byte_level_text("\u0120statement") == " statement"
    assert byte_level_text("<|end|> \u4e2d") == "<|end|> \u4e2d"


def test_byte_level_tokens_of_other_libraries():
    page = qkv.look(attention=[torch.rand(1, 2, 2)], tokens=["A", "\u0120statement"])
    assert respond(page.backend, "overview", {}).record["tokens"]["tokens"] == ["A", " statement"]


def test_what_the_model_says(browser, server, masked_run, recall_run):
    text = "a [MASK] of the class"
    backend = RunBackend(masked_run)
    (place,) = backend.candidates({"text": text})
    _, task, model = runs.load(masked_run)
    ((expected,),) = task.masked_lm(model).fill([text], 5)
    assert place.place == "[MASK] (3)"
    assert place.probabilities == pytest.approx([one.probability for one in expected], abs=1e-6)
    with serving(backend) as own, opened(browser, own.address) as page:
        go(page, text=text)
        shown = page.inner_text("#candidates")
        assert f"{place.probabilities[0]:.4f}" in shown
        assert place.tokens[0] in shown
    recall = RunBackend(recall_run)
    (place,) = recall.candidates({"text": recall.about()["text"]})
    assert place.place == "next token"
    assert all(token.isdigit() for token in place.tokens)
    with opened(browser, server.address) as page:
        go(page, text=TEXT)
        target = query(server, "overview", text=TEXT)[0]["tokens"]["target"][1:]
        assert page.inner_text("#candidates").split("\n")[-1].replace(" ", "") == "".join(target)


def test_a_saved_page_shows_its_own_text_only(browser, pairs_run, tmp_path):
    page_file = qkv.look(pairs_run, TEXT).save(tmp_path / "page.html")
    with opened(browser, f"{page_file.as_uri()}#text=HELLO&answer=X", offline=True) as page:
        assert (page.input_value("#text"), page.input_value("#answer")) == (TEXT, "")


def test_a_saved_page_offers_no_screen_that_it_does_not_hold(browser, pairs_run, tmp_path, monkeypatch):
    monkeypatch.setattr(saved_page, "OPTIONAL_BYTES", 60_000)
    page_file = qkv.look(pairs_run, TEXT).save(tmp_path / "page.html")
    with opened(browser, page_file.as_uri(), offline=True) as page:
        tabs = page.locator("#tabs button").all_inner_texts()
        assert "Attention atlas" in tabs
        assert len(tabs) < 4
        assert "Too large to keep: the screens" in page.inner_text("#input")
        for key in range(1, len(tabs) + 1):
            press(page, str(key))
            page.wait_for_selector(f"#tabs button:nth-child({key})[aria-selected=true]")
            assert page.locator(".error").count() == 0


def test_too_many_weights_for_a_page_can_be_served(monkeypatch):
    monkeypatch.setattr(saved_page, "MAX_BYTES", 1000)
    page = qkv.look(attention=[torch.rand(2, 20, 20)], tokens=["t"] * 20)
    with pytest.raises(ValueError, match=r"fewer layers, heads or tokens, or use `\.server\(\)`"):
        page.html()
    server = page.server()
    assert server.address.startswith("http://127.0.0.1:")
    server.socket.close()
    backend = ModelBackend(
        Decoder(DecoderConfig(dim=8, heads=1, layers=1, attention="softmax", max_length=30), 9),
        [3] * 20,
        tokens={"target": ["t"] * 20},
    )
    with pytest.raises(ValueError, match="a shorter text, or `qkv serve`"):
        SavedPage(backend).html()
