"""Embeddings through the official client."""

import base64
import json
import struct
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
import torch

from qkv import runs
from tests.web.rest.http import error_of, post
from tests.web.rest.runs import client, serving_api

TEXTS = ["the class is returned", "a value", "", "another statement of the module"]


@pytest.fixture(scope="module")
def encoder(masked_run):
    with serving_api(masked_run) as server:
        yield server


@pytest.fixture(scope="module")
def ask(encoder):
    with client(encoder) as found:
        yield found


@pytest.fixture(scope="module")
def expected(masked_run):
    lm = runs.load_masked_lm(masked_run)
    return torch.cat([lm.embed([text]) for text in TEXTS])


def vectors(found):
    return torch.tensor([one.embedding for one in found.data])


def test_vectors_are_those_of_the_library(ask, expected, masked_run):
    found = ask.embeddings.create(model="masked", input=TEXTS)
    torch.testing.assert_close(vectors(found), expected)
    assert [one.index for one in found.data] == [0, 1, 2, 3]
    lm = runs.load_masked_lm(masked_run)
    assert found.usage.total_tokens == sum(len(lm.tokenizer.encode(text)) for text in TEXTS)
    torch.testing.assert_close(vectors(ask.embeddings.create(model="masked", input=TEXTS[1])), expected[1:2])


def test_both_formats_hold_the_same_floats(encoder, expected):
    found = {}
    for form in ("float", "base64"):
        record = {"input": TEXTS[0], "encoding_format": form}
        (found[form],) = (one["embedding"] for one in json.loads(post(encoder, "/v1/embeddings", record)[2])["data"])
    data = base64.b64decode(found["base64"])
    assert list(struct.unpack(f"<{len(data) // 4}f", data)) == found["float"]
    assert len(found["float"]) == expected.shape[1] == 24


def test_many_clients_at_once(ask, expected):
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda i: ask.embeddings.create(model="masked", input=TEXTS[i % 4]), range(32)))
    for index, one in enumerate(found):
        torch.testing.assert_close(vectors(one)[0], expected[index % 4])


def test_a_text_that_is_too_long(ask):
    with pytest.raises(openai.BadRequestError) as found:
        ask.embeddings.create(model="masked", input=["a", "the " * 40])
    assert found.value.code == "context_length_exceeded"
    assert found.value.body["message"] == "input 2 has 40 tokens; the model takes 14"


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"input": [[1, 2]]}, "input must be a string of at most 20,000 characters, or a list of them, got a list"),
        ({"input": []}, "input must have 1 to 1,024 entries, got 0"),
        ({"input": "a", "dimensions": 7}, "dimensions is not supported by this server; leave it out, got 7"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format must be one of float, base64, got 'hex'"),
    ],
)
def test_wrong_fields(encoder, record, message):
    assert error_of(post(encoder, "/v1/embeddings", record)) == (400, message)
