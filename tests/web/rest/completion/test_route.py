"""Completions through the official client, compared with the library's own generation."""

import json
import time
from itertools import zip_longest

import openai
import pytest

from qkv import runs
from qkv.decode import sampler
from qkv.inference import PredictOptions
from qkv.inference.generate import Continuation, encode_prompt, generate
from tests.web.rest.http import post
from tests.web.rest.runs import client, serving_api

NAME = "tiny-text"
PROMPT = "alpha beta"


@pytest.fixture(scope="module")
def loaded(text_run):
    """Tokenizer and model of the run."""
    _, task, model = runs.load(text_run)
    return task.tokenizer, model


def alone(loaded, text, tokens, *, seed, row=0, **options):
    """The library's continuation of one prompt."""
    tokenizer, model = loaded
    prompt = encode_prompt(tokenizer, model, text, tokens)
    *_, last = generate(tokenizer, model, prompt, sampler(seed=seed, row_ids=[row], **options))
    assert isinstance(last, Continuation)
    return last


def create(ask, **fields):
    return ask.completions.create(**{"model": NAME, "prompt": PROMPT, "max_tokens": 24, **fields})


def streamed(ask, **fields):
    """The text of each choice, put together, and the last finish reasons."""
    texts, reasons = {}, {}
    for chunk in create(ask, stream=True, **fields):
        for choice in chunk.choices:
            assert choice.index not in reasons
            texts[choice.index] = texts.get(choice.index, "") + choice.text
            if choice.finish_reason is not None:
                reasons[choice.index] = choice.finish_reason
    return [texts[index] for index in sorted(texts)], [reasons[index] for index in sorted(reasons)]


def test_single_streamed_and_batched_texts_are_those_of_the_library(ask, loaded):
    seeds, settings = range(5), {"temperature": 0.9, "top_p": 0.95}
    whole = [alone(loaded, PROMPT, 24, seed=seed, **settings) for seed in seeds]
    expected = [one.text for one in whole]
    reasons = ["stop" if one.finished else "length" for one in whole]
    assert len(set(expected)) == 5
    assert set(reasons) == {"stop", "length"}
    found = [create(ask, seed=seed, **settings) for seed in seeds]
    assert [(one.choices[0].text, one.choices[0].finish_reason) for one in found] == list(
        zip(expected, reasons, strict=True)
    )
    assert [one.usage.completion_tokens for one in found] == [one.tokens for one in whole]
    assert [streamed(ask, seed=seed, **settings) for seed in seeds] == [
        ([text], [reason]) for text, reason in zip(expected, reasons, strict=True)
    ]
    streams = [create(ask, seed=seed, stream=True, **settings) for seed in seeds]
    together = ["" for _ in seeds]
    for chunks in zip_longest(*streams):  # a chunk of each in turn
        for index, chunk in enumerate(chunks):
            together[index] += "" if chunk is None else chunk.choices[0].text
    assert together == expected


def test_the_command_line_gives_the_same_text(ask, text_run):
    _, task, model = runs.load(text_run)
    predictor = task.predictor(model, PredictOptions(search="sample", seed=7, top_k=9, tokens=13))
    expected = predictor.predict([PROMPT], [0])[0]["answers"][0]["text"]
    assert create(ask, seed=7, max_tokens=13, extra_body={"top_k": 9}).choices[0].text == expected


def test_temperature_0_takes_the_most_probable_token(ask, text_run):
    _, task, model = runs.load(text_run)
    greedy = task.predictor(model, PredictOptions(search="greedy", tokens=24)).predict([PROMPT], [0])
    found = create(ask, temperature=0, n=2)
    assert [choice.text for choice in found.choices] == [greedy[0]["answers"][0]["text"]] * 2


def test_several_prompts_and_several_choices(ask, loaded):
    prompts = ["alpha", "", "äther theta"]
    expected = [alone(loaded, prompt, 24, seed=3, row=row) for prompt in prompts for row in range(2)]
    texts = [one.text for one in expected]
    found = create(ask, prompt=prompts, n=2, seed=3)
    assert [choice.index for choice in found.choices] == list(range(6))
    assert [choice.text for choice in found.choices] == texts
    assert streamed(ask, prompt=prompts, n=2, seed=3)[0] == texts
    read, written = sum(len(loaded[0].encode(prompt)) for prompt in prompts), sum(one.tokens for one in expected)
    usage = found.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (read, written, read + written)
    assert found.model == NAME


def test_ids_are_a_prompt_too(ask, loaded):
    ids = [loaded[0].encode(text) for text in (PROMPT, "gamma")]
    expected = [alone(loaded, text, 24, seed=5).text for text in (PROMPT, "gamma")]
    assert [choice.text for choice in create(ask, prompt=ids, seed=5).choices] == expected
    assert create(ask, prompt=ids[0], seed=5).choices[0].text == expected[0]
    assert create(ask, prompt=ids[0], seed=5, echo=True).choices[0].text == PROMPT + expected[0]


def test_echo_repeats_the_prompt(ask, loaded):
    text = alone(loaded, PROMPT, 24, seed=1).text
    assert create(ask, seed=1, echo=True).choices[0].text == PROMPT + text
    assert streamed(ask, seed=1, echo=True)[0] == [PROMPT + text]


def test_without_a_seed_choices_differ(ask):
    texts = {choice.text for _ in range(2) for choice in create(ask, prompt=[PROMPT, PROMPT], n=2).choices}
    assert len(texts) == 8


def test_default_length_is_16_tokens_or_what_fits(ask):
    fields = {"model": NAME, "seed": 1}
    assert ask.completions.create(prompt=PROMPT, **fields).usage.completion_tokens == 16
    full = [5] * 91  # with the start token 92; the last generated token is never read
    assert ask.completions.create(prompt=full, **fields).usage.completion_tokens == 5


def test_stop_strings_across_token_borders(ask, loaded):
    """Pairs of neighbors in a known text are stop strings, and the text ends before them, streamed or not."""
    text = alone(loaded, PROMPT, 40, seed=2).text
    (choice,) = create(ask, seed=2, max_tokens=40, logprobs=0).choices
    borders = set(choice.logprobs.text_offset)
    stops = {text[start : start + 2] for start in range(0, len(text) - 1, 3)}
    assert sum(text.index(stop) + 1 in borders for stop in stops) >= 3
    for stop in stops:
        expected = text[: text.index(stop)]
        found = create(ask, seed=2, max_tokens=40, stop=stop).choices[0]
        assert (found.text, found.finish_reason) == (expected, "stop")
        assert streamed(ask, seed=2, max_tokens=40, stop=[stop, "never there"]) == ([expected], ["stop"])


def test_log_probabilities(ask, loaded):
    whole = alone(loaded, PROMPT, 24, seed=4)
    assert not whole.finished
    (choice,) = create(ask, seed=4, logprobs=3).choices
    found = choice.logprobs
    assert len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs) == 24
    assert sum(found.token_logprobs) == pytest.approx(whole.log_probability, rel=1e-5)
    best = [max(top.values()) for top in found.top_logprobs]
    assert all(own <= top + 1e-6 for own, top in zip(found.token_logprobs, best, strict=True))
    assert {len(top) for top in found.top_logprobs} <= {2, 3}  # two tokens may have the same name
    assert found.text_offset == sorted(found.text_offset)
    assert found.text_offset[0] == 0
    chunks = list(create(ask, seed=4, logprobs=3, stream=True))
    tokens = [token for chunk in chunks for token in chunk.choices[0].logprobs.tokens]
    assert tokens == found.tokens


def test_tokens_of_a_stop_string_are_not_reported(ask, loaded):
    text = alone(loaded, PROMPT, 40, seed=2).text
    (choice,) = create(ask, seed=2, max_tokens=40, stop=text[6:8], logprobs=0).choices
    assert max(choice.logprobs.text_offset) < len(choice.text)
    chunks = list(create(ask, seed=2, max_tokens=40, stop=text[6:8], logprobs=0, stream=True))
    assert [token for chunk in chunks for token in chunk.choices[0].logprobs.tokens] == choice.logprobs.tokens


def test_usage_of_a_stream(ask):
    chunks = list(create(ask, seed=1, stream=True, stream_options={"include_usage": True}))
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 24


def test_a_stream_ends_with_done(api):
    status, headers, body = post(api, "/v1/completions", {"prompt": "a", "max_tokens": 3, "stream": True})
    assert status == 200
    assert headers["content-type"].startswith("text/event-stream")
    events = body.decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    records = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    assert {record["object"] for record in records} == {"text_completion"}
    assert len({record["id"] for record in records}) == 1


LONG = "the prompt has 3 tokens with the start token, and 99 more exceed the model's max_length=96"


@pytest.mark.parametrize(
    ("fields", "message", "param"),
    [
        ({"temperature": -0.5}, "temperature must be a number from 0 to 2, got -0.5", "temperature"),
        ({"temperature": "hot"}, "temperature must be a number from 0 to 2, got 'hot'", "temperature"),
        ({"top_p": 0}, "top_p must be above 0 and at most 1, got 0", "top_p"),
        ({"max_tokens": 99}, LONG, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens must be a whole number from 1 to 2147483647, got 0", "max_tokens"),
        ({"prompt": None}, "the field 'prompt' is missing", "prompt"),
        ({"prompt": "x" * 96}, "the prompt has 97 tokens with the start token, and 1 more exceed", "prompt"),
        ({"prompt": []}, "prompt must have 1 to 128 entries, got 0", "prompt"),
        ({"prompt": [1, 500]}, "token ids must be 0 to 289, got 500", "prompt"),
        ({"prompt": [[1], "a", None]}, "prompt must be a string of at most 500,000 characters", "prompt"),
        ({"prompt": "\ud800"}, "prompt is not valid Unicode", "prompt"),
        ({"stop": [""]}, "stop must be strings of 1 to 256 characters", "stop"),
        ({"n": 200}, "n must be a whole number from 1 to 128, got 200", "n"),
        ({"n": 100, "prompt": ["a", "b"]}, "n=100 times 2 prompts must be at most 128", "n"),
        ({"promt": "a"}, "unknown field 'promt'; did you mean 'prompt'?", "promt"),
        ({"best_of": True}, "best_of is not supported by this server; leave it out, got True", "best_of"),
        ({"presence_penalty": 0.5}, "presence_penalty is not supported by this server", "presence_penalty"),
        (
            {"stream": True, "stream_options": {"include_obfuscation": True}},
            "include_obfuscation is not supported by this server",
            "include_obfuscation",
        ),
        ({"stream_options": {}}, "stream_options needs stream: true", "stream_options"),
        ({"echo": True, "logprobs": 1}, "logprobs with echo is not supported", "logprobs"),
        ({"seed": 2**70}, "seed must be a whole number from", "seed"),
    ],
)
def test_wrong_fields(api, fields, message, param):
    record = {name: value for name, value in {"prompt": PROMPT, **fields}.items() if value is not None}
    status, _, body = post(api, "/v1/completions", record)
    error = json.loads(body)["error"]
    assert (status, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert error["message"].startswith(message)


def test_neutral_fields_of_openai_are_accepted(ask):
    found = create(ask, seed=1, presence_penalty=0, frequency_penalty=0.0, logit_bias={}, best_of=1, user="me")
    assert found.usage.completion_tokens == 24


def test_an_unknown_model(ask):
    with pytest.raises(openai.NotFoundError) as found:
        create(ask, model="gpt-9")
    assert (found.value.code, found.value.param) == ("model_not_found", "model")


def test_a_client_that_goes_away_frees_its_rows(long_run):
    with serving_api(long_run, max_streams=3, max_waiting=3) as server, client(server) as ask:
        streams = [create(ask, temperature=0, max_tokens=500_000, stream=True) for _ in range(5)]
        for stream in streams[:3]:
            next(stream)
        assert server.api.engine.active == 5
        for stream in streams:
            stream.close()
        wait_idle(server)


def test_a_client_that_does_not_stream_and_goes_away(long_run):
    with serving_api(long_run, max_streams=2) as server, client(server, timeout=0.3) as ask:
        with pytest.raises(openai.APITimeoutError):
            create(ask, temperature=0, max_tokens=500_000, n=2)
        wait_idle(server)


def test_the_deadline_of_a_request(long_run):
    with serving_api(long_run, timeout=0.3) as server, client(server, max_retries=5) as ask:
        with pytest.raises(openai.APIStatusError) as found:
            create(ask, temperature=0, max_tokens=500_000)
        assert (found.value.status_code, found.value.code) == (408, "deadline_exceeded")
        with pytest.raises(openai.APIError, match=r"no complete response after 0\.3 seconds"):
            streamed(ask, temperature=0, max_tokens=500_000)
        wait_idle(server)
        assert server.api.metrics.requests.values[("route", "/v1/completions"), ("status", "408")] == 1


def wait_idle(server):
    """Wait until no state is in use any more."""
    end = time.monotonic() + 10
    while server.api.engine.active or server.api.engine.statistics().state_bytes:
        assert time.monotonic() < end
        time.sleep(0.01)
    found = server.api.engine.statistics()
    assert (found.waiting, found.running, found.state_bytes) == (0, 0, 0)
