"""Who may ask: a bearer token, or on the loopback interface without one the Host and Origin of programs."""

import json

import openai
import pytest

from qkv.web.rest import ApiServer, ApiSettings, ServedRun
from qkv.web.rest.access import check_token
from tests.web.rest.http import error_of, send
from tests.web.rest.runs import client, serving_api

TOKEN = "correct-horse-battery"


@pytest.fixture(scope="module")
def guarded(text_run):
    with serving_api(text_run, token=TOKEN) as server:
        yield server


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Basic {TOKEN}", TOKEN, "Bearer \xe9", f"Bearer{TOKEN}"],
)
@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/v1/completions", "/nowhere"])
def test_requests_without_the_token(guarded, header, path):
    answer = send(guarded, "GET", path, headers={"authorization": header})
    assert answer[1]["www-authenticate"] == "Bearer"
    status, message = error_of(answer)
    assert (status, message) == (401, "the header `authorization: Bearer TOKEN` is missing, or its token is wrong")


def test_the_client_sends_the_token(guarded):
    with client(guarded) as ask:
        assert [one.id for one in ask.models.list().data] == ["tiny-text"]
        assert ask.models.retrieve("tiny-text").task == "text"
        with pytest.raises(openai.NotFoundError):
            ask.models.retrieve("other")
    with client(guarded, api_key="wrong") as ask, pytest.raises(openai.AuthenticationError):
        ask.models.list()


def test_health_needs_no_token_and_a_proxy_may_use_any_host(guarded):
    status, _, body = send(guarded, "GET", "/healthz", headers={"authorization": None, "host": "balancer"})
    assert (status, json.loads(body)) == (200, {"status": "ok"})
    assert send(guarded, "GET", "/v1/models", headers={"host": "api.example.org"})[0] == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"host": "127.0.0.1"}, 421),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
    ],
)
@pytest.mark.parametrize("path", ["/v1/models", "/healthz"])
def test_without_a_token_no_other_site_may_ask(api, headers, status, path):
    assert error_of(send(api, "GET", path, headers=headers))[0] == status


def test_without_a_token_programs_of_this_machine_may_ask(api):
    for host in (f"127.0.0.1:{api.port}", f"localhost:{api.port}"):
        assert send(api, "GET", "/v1/models", headers={"host": host})[0] == 200


def test_nothing_is_cached_or_framed(api):
    headers = send(api, "GET", "/v1/models")[1]
    assert headers["cache-control"] == "no-store"
    assert headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
    assert "server" not in headers


@pytest.mark.parametrize("token", ["", "short", "with a space in it", "line\nend-of-sixteen", "nicht-öffentlich-x"])
def test_weak_tokens_are_refused_and_not_repeated(token):
    with pytest.raises(ValueError, match="the token must have at least 16 printable ASCII characters") as found:
        check_token(token)
    assert token == "" or token not in str(found.value)


def test_beyond_the_loopback_interface_there_is_always_a_token(text_run):
    served = ServedRun.load(text_run)
    for host in ("0.0.0.0", "::"):
        server = ApiServer(served, ApiSettings(host=host))
        try:
            assert len(server.token) == 32
            assert server.has_own_token
        finally:
            server.socket.close()
            server.api.stop()
    with pytest.raises(ValueError, match="host must be an IP address such as 0.0.0.0, or localhost, got 'example.org'"):
        ApiServer(served, ApiSettings(host="example.org"))
