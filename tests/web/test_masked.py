"""An encoder on the workbench: one sequence, and every token attends both ways."""

import pytest

from qkv import runs
from qkv.explain import observe
from qkv.web.api import respond, saved_queries
from qkv.web.backend import RunBackend
from tests.web.pages import go, number, opened
from tests.web.runs import serving

TEXT = "a [MASK] of the class"


def test_special_tokens_are_shown(masked_run):
    backend = RunBackend(masked_run)
    tokens = backend.view_model({"text": TEXT}).tokens
    assert tokens == {"source": ["[CLS]", "a", "[MASK]", "of", "the", "class", "[SEP]"]}
    assert [site.name for site in backend.view_model({"text": TEXT}).sites] == ["layer 1", "layer 2"]
    assert "[MASK]" in respond(backend, "about", {}).record["text"]
    for request, _ in list(saved_queries(backend, {"text": TEXT}))[:40]:
        respond(backend, request.name, {"text": TEXT, **request.params})


def test_bad_input(masked_run):
    backend = RunBackend(masked_run)
    with pytest.raises(ValueError, match="the text is empty"):
        backend.view_model({"text": "  "})
    with pytest.raises(ValueError, match="the text has 42 tokens; this model takes at most 16"):
        backend.view_model({"text": "the " * 40})
    assert backend.view_model({"text": "class \U0001f600"}).notes == ["some of the text is unknown to the tokenizer"]


def test_the_weight_on_the_page_matches_the_library(browser, masked_run):
    _, task, model = runs.load(masked_run)
    ids = [1, *task.tokenizer.encode(TEXT, special=True), 2]
    records = observe(model, ids)
    with serving(RunBackend(masked_run)) as server, opened(browser, server.address) as page:
        for site, head, row, column in ((0, 1, 2, 5), (1, 2, 0, 6)):
            go(page, text=TEXT, site=site, head=head, row=row, column=column)
            expected = float(records[site].call.weights()[0, head, row, column])
            assert number(page, "#weight") == pytest.approx(expected, abs=6e-5)
