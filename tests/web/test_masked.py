"""An encoder on the workbench: one sequence, and every token looks both ways."""

import pytest

from qkv import tasks
from qkv.explain import observe
from qkv.web.backend import RunBench
from tests.web.pages import go, number, opened
from tests.web.runs import serving, train

TEXT = "a [MASK] of the class"
MASKED = {
    "model": {"dim": 24, "heads": 3, "hidden_dim": 16, "layers": 2, "max_length": 16},
    "train": {"steps": 2, "batch_size": 4, "warmup": 1, "validate_every": 2},
    "data": {"size": 600, "length": 16, "examples": 4},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(tmp_path_factory.mktemp("masked") / "masked", "masked", MASKED)


def test_tokens_with_their_signs(run):
    bench = RunBench(run)
    tokens = bench.scene({"text": TEXT}).tokens
    assert tokens == {"source": ["[CLS]", "a", "[MASK]", "of", "the", "class", "[SEP]"]}
    assert [place.name for place in bench.scene({"text": TEXT}).places] == ["layer 1", "layer 2"]
    assert "[MASK]" in bench.answer("about", {}).record["text"]
    for name, asked in list(bench.questions({"text": TEXT}))[:40]:
        bench.answer(name, {"text": TEXT, **asked})


def test_bad_input(run):
    bench = RunBench(run)
    with pytest.raises(ValueError, match="the text is empty"):
        bench.scene({"text": "  "})
    with pytest.raises(ValueError, match="the text has 42 tokens; this model takes at most 16"):
        bench.scene({"text": "the " * 40})
    assert bench.scene({"text": "class \U0001f600"}).notes == ["some of the text is unknown to the tokenizer"]


def test_the_weight_on_the_page_is_the_librarys(browser, run):
    _, job, model = tasks.restore(run)
    ids = [1, *job.tokenizer.encode(TEXT, special=True), 2]
    looks = observe(model, ids)
    with serving(RunBench(run)) as server, opened(browser, server.address) as page:
        for place, head, row, column in ((0, 1, 2, 5), (1, 2, 0, 6)):
            go(page, text=TEXT, place=place, head=head, row=row, column=column)
            expected = float(looks[place].call.weights()[0, head, row, column])
            assert number(page, "#weight") == pytest.approx(expected, abs=6e-5)
