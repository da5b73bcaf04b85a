"""The list of screens, and a kind of a plugin on all of them."""

import pytest

from qkv.attention import Attention, Softmax, kinds
from qkv.explain import observe
from qkv.models import Decoder, DecoderConfig
from qkv.web.api import respond, saved_queries
from qkv.web.backend import Backend
from qkv.web.screens import SCREENS
from qkv.web.static_files import static_files
from qkv.web.view_model import ModelViewModel
from tests.web.pages import go, number, opened
from tests.web.runs import serving

TOKENS = list("abcde")


class Uniform(Attention):
    """The mean of the visible values; neither a feature map nor a softmax over scores of its own."""

    def __init__(self):
        super().__init__()
        self.inner = Softmax(scale=0.0)

    def weights(self, q, k, **options):
        return self.inner.weights(q, k, **options)

    def forward(self, q, k, v, **options):
        return self.inner(q, k, v, **options)

    def start(self, *sizes, **options):
        return self.inner.start(*sizes, **options)

    def step(self, q, k, v, state, **options):
        return self.inner.step(q, k, v, state, **options)

    def cost(self, shape):
        return self.inner.cost(shape)


class PluginBackend(Backend):
    """A small decoder with that kind, on one input."""

    def __init__(self):
        config = DecoderConfig(dim=12, heads=2, layers=1, attention="uniform", positions="none", max_length=9)
        self.model = Decoder(config, 11)
        self.records = observe(self.model, [3, 4, 5, 6, 7])

    def about(self):
        return {"name": "plugin", "torch": "", "text": None, "writes": False}

    def view_model(self, params):
        return ModelViewModel(self.records, {"target": TOKENS}, [], ["# observe("])


@pytest.fixture(scope="module")
def plugin():
    kinds.register("uniform")(Uniform)
    yield PluginBackend()
    del kinds._classes["uniform"]


def test_a_screen_is_named_once():
    files = static_files()
    frame = files["main.js"] + files["state.js"] + files["api.js"]
    for screen in SCREENS:
        assert f"screens/{screen.name}.js" in files
        assert f'"{screen.name}' not in frame.decode()


def test_every_request_of_a_plugin_kind(plugin):
    queries = [query for query, _ in saved_queries(plugin, {})]
    assert {query.name for query in queries} >= {"thumbnails", "head", "token_trace", "versus", "copying"}
    assert {"site": 0, "head": 1, "kind": "uniform"} in [query.params for query in queries]
    for query in queries:
        respond(plugin, query.name, query.params)


def test_a_plugin_kind_on_every_screen(browser, plugin):
    with serving(plugin) as server, opened(browser, server.address) as page:
        go(page, screen="atlas", row=3, column=1)
        assert number(page, "#weight") == pytest.approx(0.25, abs=6e-5)
        assert page.locator("#strip .failed").count() == 0
        go(page, screen="stepwise", row=3, column=1, step=1)
        assert page.locator(".stages button").all_inner_texts() == [
            "1 query and keys",
            "2 weights",
            "3 values",
            "4 output",
        ]
        assert number(page, "#weight") == pytest.approx(0.25, abs=6e-5)
        assert page.locator("#strip .failed").count() == 0
        go(page, screen="versus", row=3, column=1, kind="uniform")
        assert number(page, "#implied") == pytest.approx(0.25, abs=6e-5)
        assert page.locator("#strip .failed").count() == 0
