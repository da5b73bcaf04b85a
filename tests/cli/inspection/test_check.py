import json

import pytest

from qkv.attention import Result
from tests.cli.run import qkv


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """A kind whose fast form is wrong by one part in a thousand."""
    (tmp_path / "broken_kind.py").write_text(
        "from qkv.attention import Linear, register\n"
        "@register('broken')\n"
        "class Broken(Linear):\n"
        "    'A kind with a bug.'\n"
        "    def features(self, x):\n"
        "        return x * 1.0005\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


def test_json_keys_and_exit_code():
    results = json.loads(qkv("check", "--kind", "linear", "--json"))
    assert all(set(result) == {"kind", "identity", "error", "bound", "ok"} for result in results)
    assert {result["kind"] for result in results} == {"linear"}
    assert all(result["ok"] and result["error"] <= result["bound"] for result in results)
    assert len(results) >= 15


def test_a_kind_from_outside_is_proven_too():
    table = qkv("check", "--plugin", "examples.relu_kind", "--kind", "relu")
    assert "relu" in table
    assert "22 of 22 hold" in table


def test_options_of_a_kind():
    results = json.loads(qkv("check", "--kind", "taylor", "--set", "order=4", "--json"))
    assert results[0]["bound"] == 1e-10


def test_a_failed_check_exits_with_3(monkeypatch):
    """With results of our own; that a wrong form is found is the next test."""
    results = [Result("linear", "first", 1e-13, 1e-12), Result("linear", "second", 1e-11, 1e-12)]
    monkeypatch.setattr("qkv.attention.check", lambda mechanism: results)
    found = json.loads(qkv("check", "--kind", "linear", "--json", code=3))
    assert [(one["identity"], one["ok"]) for one in found] == [("first", True), ("second", False)]


def test_a_failed_check_is_named_in_the_table(broken):
    table = qkv("check", "--kind", "broken", "--plugin", "broken_kind", code=3)
    assert "broken: forward = definition, and gradients" in table
    assert "exceeds 1.0e-12" in table


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--kind", "tailor"), "qkv: unknown attention kind 'tailor'; did you mean 'taylor'?"),
        (("--kind", "taylor", "--set", "order=3"), "qkv: order must be even and at least 2"),
        (("--kind", "taylor", "--set", "oder=4"), "did you mean 'order'?"),
        (("--kind", "taylor", "--set", "order"), "expected NAME=VALUE"),
        (("--set", "order=4"), "--set needs --kind"),
    ],
)
def test_wrong_use_is_one_sentence(arguments, message):
    text = qkv("check", *arguments, code=2)
    assert message in text
    assert len(text.strip().splitlines()) == 1
