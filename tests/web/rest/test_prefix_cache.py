"""Prompts that begin alike: the same answers as without a cache, counted, and within its bytes."""

import json
import re

import pytest

from tests.web.rest.http import post, send
from tests.web.rest.runs import serving_api

SYSTEM = "alpha beta gamma delta epsilon zeta theta, " * 6
QUESTIONS = ["alpha", "beta gamma", "theta " * 9, "alpha"]


def texts(server, prompts, **fields):
    found = []
    for prompt in prompts:
        asked = {"prompt": prompt, "max_tokens": 30, "seed": 3, "logprobs": 0, **fields}
        status, _, body = post(server, "/v1/completions", asked)
        assert status == 200, body
        (choice,) = json.loads(body)["choices"]
        found.append((choice["text"], choice["logprobs"]["token_logprobs"]))
    return found


def counts(server):
    lines = send(server, "GET", "/metrics")[2].decode()
    return {name: float(value) for name, value in re.findall(r"^qkv_prefix_cache_(\S+) (\S+)$", lines, re.M)}


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_the_same_answers_with_and_without_it(long_run, temperature):
    prompts = [SYSTEM + question for question in QUESTIONS]
    with serving_api(long_run, prefix_cache=0) as server:
        expected = texts(server, prompts, temperature=temperature)
        assert counts(server) == {}
    with serving_api(long_run) as server:
        found = texts(server, prompts, temperature=temperature)
        after = counts(server)
        assert [text for text, _ in found] == [text for text, _ in expected]
        for (_, ours), (_, theirs) in zip(found, expected, strict=True):
            assert ours == pytest.approx(theirs, abs=1e-4)
        assert found[3] == found[0]  # a hit and a miss give the same bits
    assert after['prompts_total{result="miss"}'] == 1
    assert after['prompts_total{result="hit"}'] == 3
    assert after['tokens_total{kind="reused"}'] == 3 * 64  # one block: they part in the second
    assert 0 < after["bytes"] <= 64 * 2**20


def test_the_bound_holds(long_run):
    with serving_api(long_run, prefix_cache=0.01) as server:
        for number in range(12):
            texts(server, [f"{number} {SYSTEM}"])
            assert counts(server)["bytes"] <= 0.01 * 2**20
        assert counts(server)["evictions_total"] > 0


def test_short_prompts_are_not_looked_up(long_run):
    with serving_api(long_run) as server:
        texts(server, ["alpha", "alpha"])
        assert set(counts(server).values()) == {0.0}


def test_after_a_step_that_failed_it_begins_anew(long_run):
    with serving_api(long_run) as server:
        texts(server, [SYSTEM])
        assert counts(server)["bytes"] > 0
        server.api.engine._replace_batcher()
        assert counts(server)["bytes"] == 0
        assert texts(server, [SYSTEM]) == texts(server, [SYSTEM])
