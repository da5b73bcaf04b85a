"""Predictions over HTTP equal those of `qkv predict`, alone and in batches of many clients."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from qkv import runs
from qkv.inference import PredictOptions
from tests.web.rest.http import error_of, post
from tests.web.rest.runs import serving_api
from tests.web.runs import train_xor

WORDS = ["abc", "fed", "cab", "deaf", "bead", "face", "cafe", "ad"]


@pytest.fixture(scope="module")
def pairs(pairs_run):
    with serving_api(pairs_run) as server:
        yield server


def predicted(run, texts, **options):
    """What the library predicts for each text alone."""
    _, task, model = runs.load(run)
    predictor = task.predictor(model, PredictOptions(**options))
    return [predictor.predict([text], [0])[0] for text in texts]


def data_of(answer):
    status, _, body = answer
    assert status == 200, body
    return json.loads(body)["data"]


def texts_of(records):
    return [[one["text"] for one in record["answers"]] for record in records]


def test_one_input_and_several(pairs, pairs_run):
    expected = predicted(pairs_run, WORDS)
    found = data_of(post(pairs, "/v1/predict", {"model": "pairs", "input": WORDS}))
    assert texts_of(found) == texts_of(expected)
    assert [record["input"] for record in found] == WORDS
    for record, other in zip(found, expected, strict=True):
        assert record["answers"][0]["probability"] == pytest.approx(other["answers"][0]["probability"], rel=1e-4)
    assert texts_of(data_of(post(pairs, "/v1/predict", {"input": WORDS[2]}))) == texts_of(expected[2:3])


def test_options_are_those_of_the_command(pairs, pairs_run):
    expected = predicted(pairs_run, WORDS, search="beam", beams=3, best=3)
    found = data_of(post(pairs, "/v1/predict", {"input": WORDS, "search": "beam", "beams": 3, "best": 3}))
    assert texts_of(found) == texts_of(expected)
    assert {len(record["answers"]) for record in found} == {3}
    sampled = predicted(pairs_run, WORDS[:1], search="sample", seed=4)
    found = data_of(post(pairs, "/v1/predict", {"input": WORDS[:1], "search": "sample", "seed": 4}))
    assert texts_of(found) == texts_of(sampled)


def test_many_clients_at_once_get_their_own_answers(pairs, pairs_run):
    expected = texts_of(predicted(pairs_run, WORDS))

    def ask(index):
        return texts_of(data_of(post(pairs, "/v1/predict", {"input": WORDS[index % 8]})))

    with ThreadPoolExecutor(24) as pool:
        found = list(pool.map(ask, range(48)))
    assert found == [[expected[index % 8]] for index in range(48)]


def test_an_input_without_an_answer_stops_no_other(pairs):
    found = data_of(post(pairs, "/v1/predict", {"input": ["abc", "a" * 30]}))
    assert found[0]["error"] is None
    assert found[1]["error"].endswith("has 30 tokens; the model takes 24")
    status, message = error_of(post(pairs, "/v1/predict", {"input": "a" * 30}))
    assert (status, message) == (400, found[1]["error"])


def test_a_prompt_that_is_too_long_stops_no_other(text_run):
    record = {"input": ["alpha", "a b c " * 30, "beta"], "tokens": 3, "search": "greedy"}
    with serving_api(text_run) as server:
        first, long, last = data_of(post(server, "/v1/predict", record))
        assert error_of(post(server, "/v1/predict", {**record, "input": record["input"][1]})) == (400, long["error"])
    reason = "and 3 more exceed the model's max_length=96"
    assert (long["answers"], long["error"].endswith(reason)) == ([], True)
    assert texts_of([first, last]) == texts_of(predicted(text_run, ["alpha", "beta"], tokens=3, search="greedy"))


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({}, "the field 'input' is missing"),
        (
            {"input": "a" * 20_001},
            "input must be a string of at most 20,000 characters, or a list of them, got 20,001 characters",
        ),
        ({"input": 5}, "input must be a string of at most 20,000 characters, or a list of them, got 5"),
        ({"input": ["a"] * 1025}, "input must have 1 to 1,024 entries, got 1,025"),
        ({"input": "a", "best": 3, "search": "greedy"}, "best 3 needs search beam: greedy gives one answer"),
        ({"input": "a", "top_k": 3}, "top_k has no effect with search beam; it needs search sample"),
        ({"input": "a", "search": "bean"}, "search must be one of greedy, beam, sample, got 'bean'"),
        ({"input": "a", "beams": 10_000}, "beams must be a whole number from 1 to 64, got 10000"),
        ({"input": "a", "tokens": 5}, "tokens is for runs of task text, and this is a run of task pairs"),
        ({"inputs": "a"}, "unknown field 'inputs'; did you mean 'input'?"),
        ({"input": "a", "model": "other"}, "there is no model 'other' here; this server has 'pairs'"),
    ],
)
def test_wrong_fields(pairs, record, message):
    status, found = error_of(post(pairs, "/v1/predict", record))
    assert (status, found) == (404 if "model" in record else 400, message)


def test_routes_that_this_run_does_not_have(pairs):
    status, message = error_of(post(pairs, "/v1/completions", {"prompt": "a"}))
    assert (status, message) == (404, "a run of task 'pairs' has no /v1/completions; it has /v1/predict")
    assert error_of(post(pairs, "/v1/embeddings", {"input": "a"}))[0] == 404


def test_masks_are_filled(masked_run):
    text = "a [MASK] of the class"
    with serving_api(masked_run) as server:
        (found,) = data_of(post(server, "/v1/predict", {"input": text, "best": 3}))
        assert error_of(post(server, "/v1/predict", {"input": "no mask"}))[1] == "'no mask' has no [MASK] to fill"
    (expected,) = predicted(masked_run, [text], best=3)
    assert [one["text"] for one in found["masks"][0]] == [one["text"] for one in expected["masks"][0]]


def test_points_are_classified_and_never_read_from_files(tmp_path):
    run = train_xor(tmp_path)
    secret = tmp_path / "secret.png"
    secret.write_text("none of your business")
    with serving_api(run) as server:
        found = data_of(post(server, "/v1/predict", {"input": ["0,1", "1,1"]}))
        assert texts_of(found) == texts_of(predicted(run, ["0,1", "1,1"]))
        message = error_of(post(server, "/v1/predict", {"input": str(secret)}))[1]
    assert "secret" not in message.replace(str(secret), "")
    assert "not an image" not in message


def test_text_is_predicted_too(text_run, api):
    (expected,) = predicted(text_run, ["alpha"], seed=3, tokens=9)
    (found,) = data_of(post(api, "/v1/predict", {"input": "alpha", "seed": 3, "tokens": 9}))
    assert texts_of([found]) == texts_of([expected])
