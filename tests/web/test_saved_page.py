"""Saved pages: from disk, without a network, in a notebook's frame."""

import re

import pytest
import torch
from safetensors.torch import save_file

import qkv
from qkv import inference, runs
from qkv.errors import QkvError
from qkv.explain import observe
from qkv.web import SavedPage
from qkv.web.static_files import static_files
from tests.cli.run import qkv as run_qkv
from tests.runs.sealing import reseal
from tests.tasks.tiny import write_pairs
from tests.web.pages import go, number, opened, press
from tests.web.runs import train

TEXT = "fabcde"


@pytest.fixture(scope="module")
def page_file(pairs_run, tmp_path_factory):
    return qkv.look(pairs_run, TEXT).save(tmp_path_factory.mktemp("look") / "page.html")


def test_a_saved_page_is_the_same_page(browser, server, page_file):
    """From disk with the network off: picture and values are those of the server, to the last digit."""
    state = {"site": 3, "head": 2, "row": 1, "column": 0, "table": 1}
    seen = []
    for address, options in ((server.address, {}), (page_file.as_uri(), {"offline": True})):
        with opened(browser, address, **options) as page:
            go(page, **state, **({"text": TEXT} if not options else {}))
            picture = page.eval_on_selector("svg[data-focus=map]", "e => e.outerHTML")
            seen.append(
                (re.sub(r"(hatch|scale)-\d+", "", picture), page.inner_text("table"), page.inner_text("#weight"))
            )
    assert seen[0] == seen[1]
    assert "data:image/png;base64," in seen[0][0]


def test_a_saved_page_holds_every_screen(browser, server, page_file):
    state = {"screen": "versus", "site": 1, "head": 2, "row": 1, "column": 0, "table": 1, "kind": "elu", "quarters": 7}
    seen = []
    for address, options in ((server.address, {}), (page_file.as_uri(), {"offline": True})):
        with opened(browser, address, **options) as page:
            go(page, **state, **({"text": TEXT} if not options else {}))
            seen.append(page.locator("table").all_inner_texts())
    assert len(seen[0]) == 3
    assert seen[0] == seen[1]


def test_a_saved_page_disables_the_input(browser, page_file):
    with opened(browser, page_file.as_uri(), offline=True) as page:
        assert "qkv serve" in page.inner_text("#side")
        assert page.is_disabled("#text")


def test_in_a_notebook(browser, tmp_path):
    """As Jupyter shows it: a frame with an opaque origin."""
    weights = torch.randn(3, 1, 2, 5, 7).softmax(-1)
    view = qkv.look(attention=tuple(weights), tokens=list("abcde"), keys=list("uvwxyz!"))
    (tmp_path / "notebook.html").write_text(f"<!doctype html><meta charset=utf-8>{view._repr_html_()}")
    context = browser.new_context(offline=True)
    page = context.new_page()
    errors = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto((tmp_path / "notebook.html").as_uri())
    frame = page.frame_locator("iframe")
    frame.locator("#weight").wait_for()
    frame.get_by_role("button", name="layer 2, head 2").click()
    frame.locator("h2:text-is('layer 2, head 2')").wait_for()
    assert frame.locator(".readout").inner_text().startswith("a (1) attends to")
    shown = float(frame.locator("#weight").inner_text())
    assert shown == pytest.approx(float(weights[1, 0, 1, 0].max()), abs=6e-5)
    assert errors == []
    context.close()


def test_matrices_that_are_not_square(browser, tmp_path):
    weights = torch.randn(2, 3, 5, 7).softmax(-1)
    page_file = qkv.look(attention=list(weights), tokens=list("abcde"), keys=list("uvwxyz!")).save(tmp_path / "x.html")
    with opened(browser, page_file.as_uri(), offline=True) as page:
        go(page, site=1, head=2, row=4, column=6)
        assert number(page, "#weight") == pytest.approx(float(weights[1, 2, 4, 6]), abs=6e-5)
        assert page.inner_text("#readout").startswith("e (5) attends to ! (7)")


HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "\"><svg onload=alert(1)>",
    "javascript:alert(1)",
    "{{7*7}}",
    "${alert(1)}",
    "'; alert(1); //",
    "\u202eevil\u202c",
    "\u2066\u2067\u2068",
    "\0\1\2\x1b[31m",
    "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"),
    "a" * 20_000,
    "\u0301" * 500,
    "&lt;b&gt;&#x3c;",
    "<!--",
    "]]>",
    "\r\n\t",
    " ",
    "\ufeff\u200b\u200d",
    "</style><style>*{display:none}</style>",
    "<math><mi//xlink:href=\"data:x,<script>alert(1)</script>\">",
    "data:text/html,<script>alert(1)</script>",
    "=cmd|' /C calc'!A0",
    "\U000e0041\U000e0042",
]  # fmt: skip


def test_hostile_tokens_insert_nothing(browser, tmp_path):
    """100 of them, as labels of rows and columns, in every picture and in the table."""
    tokens = [f"{text}{number or ''}" for number in range(4) for text in HOSTILE]
    assert len(tokens) == 100
    weights = torch.randn(1, 2, 100, 100).softmax(-1)
    page_file = qkv.look(attention=list(weights), tokens=tokens).save(tmp_path / "<b>'\"&.html")
    with opened(browser, page_file.as_uri(), offline=True) as page:
        for mode in ("map", "arcs", "text"):
            go(page, mode=mode, table=1, row=50, column=50, rows="1.2.3")
            strange = page.evaluate(
                "document.querySelectorAll('body img, iframe, object, embed, body style, [onerror], [onload]').length"
            )
            assert strange == 0
            assert page.locator("script").count() == 7 + 2


def test_hostile_texts_as_input(browser, server):
    with opened(browser, server.address) as page:
        page.intended.append("400 (Bad Request)")  # the browser notes each
        for text in HOSTILE:
            page.fill("#text", text)
            press(page, "Control+Enter")
            assert page.evaluate("document.querySelectorAll('script, img, style, iframe').length") == 1


def test_the_static_files_are_small():
    files = static_files()
    assert sum(map(len, files.values())) <= 180_000
    for name, contents in files.items():
        text = contents.decode()
        assert "innerHTML" not in text, name
        assert "insertAdjacentHTML" not in text, name
        assert not re.search(r"https?://(?!www\.w3\.org/)", text), name


def test_the_command_writes_the_page(pairs_run, tmp_path):
    out = tmp_path / "page.html"
    assert "open it in a browser" in run_qkv("look", str(pairs_run), TEXT, "--out", str(out))
    assert out.read_text().startswith("<!doctype html>")
    assert "the text is empty" in run_qkv("look", str(pairs_run), "", "--out", str(out), code=2)
    assert "there is no such run folder" in run_qkv("look", str(tmp_path / "none"), TEXT, code=2)
    assert "there is no folder" in run_qkv("look", str(pairs_run), TEXT, "--out", str(tmp_path / "no" / "x"), code=2)
    assert "there is no such run folder" in run_qkv("serve", str(tmp_path / "none"), code=2)


def test_a_broken_run(pairs_run, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    for name in ("config.json", "vocabulary.json"):
        (broken / name).write_bytes((pairs_run / name).read_bytes())
    reseal(broken)
    with pytest.raises(QkvError, match="the run has no model yet"):
        qkv.look(broken, TEXT)
    (broken / "model.safetensors").write_bytes(b"x" * 100)
    reseal(broken)
    with pytest.raises(QkvError, match="damaged"):
        qkv.look(broken, TEXT)
    (broken / "config.json").write_text('{"format": 99}')
    reseal(broken)
    with pytest.raises(QkvError, match="has format 99"):
        qkv.look(broken, TEXT)


def test_answers_without_an_end(browser, tmp_path):
    """A recurrent model that never emits END stops at its limit; no next tokens exist after it."""
    model = {"family": "recurrent", "dim": 12, "max_length": 9}
    run = train(tmp_path / "run", "pairs", {"model": model, "train": {"steps": 1}, "data": write_pairs(tmp_path)})
    _, task, net = runs.load(run)
    net.lm_head.bias.data[task.data.targets.END] = -100.0
    save_file(net.state_dict(), run / "model.safetensors")
    reseal(run)
    ((found,),) = inference.predict_targets(net, task.data.sources, [list("abc")], inference.Search(beams=4))
    assert not found.finished
    page_file = qkv.look(run, "abc").save(tmp_path / "page.html")
    with opened(browser, page_file.as_uri(), offline=True) as page:
        go(page, screen="decoding")
        assert f"No token follows here: an answer has at most {len(found.tokens)} tokens." in page.inner_text("#main")


def test_a_run_without_attention(tmp_path):
    run = train(tmp_path / "xor", "xor", {"train": {"steps": 1, "validate_every": 1}})
    printed = run_qkv("look", str(run), "0,1", "--out", str(tmp_path / "x.html"), code=2)
    assert "a run of task 'xor' has no attention to show" in printed
    assert "has no attention to show" in run_qkv("serve", str(run), code=2)


def test_bad_input():
    good = torch.rand(2, 3, 3)
    with pytest.raises(ValueError, match="give either a run and a text, or attention= and tokens="):
        qkv.look()
    with pytest.raises(TypeError, match=r'attention\[0\] is None: .*attn_implementation="eager"'):
        qkv.look(attention=[None], tokens=["a"])
    with pytest.raises(ValueError, match=r"attention\[1\] must be \(1, heads, queries, keys\).*got \(3, 3\)"):
        qkv.look(attention=[good, good[0]], tokens=list("abc"))
    with pytest.raises(ValueError, match="tokens has 2 tokens, but attention has 3"):
        qkv.look(attention=[good], tokens=list("ab"))
    with pytest.raises(TypeError, match="tokens must be a list of texts"):
        qkv.look(attention=[good], tokens="abc")
    with pytest.raises(ValueError, match="attention is 3 x 5: give keys= as well"):
        qkv.look(attention=[torch.rand(2, 3, 5)], tokens=list("abc"))
    with pytest.raises(ValueError, match="at least one layer, got 0"):
        qkv.look(attention=[], tokens=[])
    with pytest.raises(ValueError, match="more than 64 MiB of data"):
        qkv.look(attention=list(torch.rand(5, 4, 1024, 1024)), tokens=["x"] * 1024).html()


def test_a_model_of_another_library():
    """Its attentions, as it gives them, are ours to show."""
    weights = tuple(torch.rand(1, 2, 3, 3).softmax(-1) for _ in range(2))
    assert isinstance(qkv.look(attention=weights, tokens=list("abc")), SavedPage)


def test_saved_values_match_the_library(pairs_run, page_file, browser):
    _, task, model = runs.load(pairs_run)
    ((found,),) = inference.predict_targets(model, task.data.sources, [list(TEXT)], inference.Search())
    records = observe(model, task.data.sources.encode(TEXT), list(found.tokens))
    with opened(browser, page_file.as_uri(), offline=True) as page:
        go(page, site=5, head=1, row=0, column=4)
        assert number(page, "#weight") == pytest.approx(float(records[5].call.weights()[0, 1, 0, 4]), abs=6e-5)
