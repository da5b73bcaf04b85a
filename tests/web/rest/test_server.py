"""Limits and the end: overload, large and slow bodies, broken requests, and a server that finishes what it accepted."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from qkv.web.rest import ApiSettings
from tests.cli.run import ROOT
from tests.web.rest.completion.test_route import wait_idle
from tests.web.rest.http import error_of, post, send
from tests.web.rest.runs import client, serving_api

ENDLESS = {"prompt": "alpha", "temperature": 0, "max_tokens": 500_000}


def endless(server):
    """A stream that has begun and does not end by itself."""
    found = client(server).completions.create(model="tiny-text", stream=True, **ENDLESS)
    next(found)
    return found


def test_overload_is_refused_at_once(long_run):
    with serving_api(long_run, max_streams=2, max_waiting=1) as server:
        streams = [endless(server), endless(server)]
        waiting = threading.Thread(target=post, args=(server, "/v1/completions", {**ENDLESS, "max_tokens": 3}))
        waiting.start()
        while server.api.engine.active < 3:
            time.sleep(0.01)
        took = []
        for _ in range(5):
            start = time.monotonic()
            answer = post(server, "/v1/completions", ENDLESS)
            took.append(time.monotonic() - start)
            assert error_of(answer) == (429, "too many requests are in flight; try again in a moment")
            assert int(answer[1]["retry-after"]) >= 1
        assert min(took) < 0.2
        with client(server) as ask, pytest.raises(openai.RateLimitError):
            ask.completions.create(model="tiny-text", **ENDLESS)
        assert send(server, "GET", "/healthz")[0] == 200
        for stream in streams:
            stream.close()
        waiting.join(10)
        wait_idle(server)
        assert post(server, "/v1/completions", {"prompt": "a", "max_tokens": 3})[0] == 200
        counted = server.api.metrics.requests.values
        assert counted[("route", "/v1/completions"), ("status", "429")] == 6


def test_more_choices_than_there_are_streams(long_run):
    with serving_api(long_run, max_streams=2, max_waiting=1) as server:
        status, message = error_of(post(server, "/v1/completions", {**ENDLESS, "n": 4}))
        assert (status, message) == (400, "4 continuations are more than this server runs at a time, 3")
        with endless(server):
            assert error_of(post(server, "/v1/completions", {**ENDLESS, "n": 3}))[0] == 429
        wait_idle(server)


def test_other_requests_are_refused_too(pairs_run):
    release = threading.Event()
    with serving_api(pairs_run, max_waiting=1) as server:
        predict = server.api.predictions.queue.compute

        def hold(*arguments):
            release.wait(20)
            return predict(*arguments)

        server.api.predictions.queue.compute = hold
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(post, server, "/v1/predict", {"input": "abc"})
            while not server.api.predictions.queue.running:
                time.sleep(0.01)
            second = pool.submit(post, server, "/v1/predict", {"input": "abc"})
            while not server.api.predictions.queue.waiting:
                time.sleep(0.01)
            answer = post(server, "/v1/predict", {"input": "abc"})
            assert error_of(answer)[0] == 429
            assert answer[1]["retry-after"] == "1"
            release.set()
            assert [one.result()[0] for one in (first, second)] == [200, 200]


@pytest.mark.parametrize(
    ("body", "headers", "status", "message"),
    [
        (
            b"{",
            {},
            400,
            "the request is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        ),
        (b'{"prompt": "\xff\xfe"}', {}, 400, "the request is not JSON: byte 12 is not UTF-8"),
        (b"[1]", {}, 400, "a request must be a JSON object, got a list"),
        (b"", {}, 400, "the field 'prompt' is missing"),
        (
            b'{"seed": ' + b"1" * 5000 + b"}",
            {},
            400,
            "the request is not JSON: Exceeds the limit (4300 digits) for integer string conversion: "
            "value has 5000 digits",
        ),
        (b'{"temperature": NaN}', {}, 400, "the request is not JSON: NaN is not a JSON number"),
        (b"[" * 100_000, {}, 400, "the request is not JSON that can be read: it is nested too deep"),
        (b"{}", {"content-type": "text/plain"}, 415, "requests must be JSON: content-type application/json"),
        (b'{"prompt": "' + b"a" * 2**20 + b'"}', {}, 413, "a request body may have at most 1,048,576 bytes"),
    ],
)
def test_broken_requests(api, body, headers, status, message):
    assert error_of(send(api, "POST", "/v1/completions", body, headers)) == (status, message)


def test_all_bodies_together_are_bounded(text_run, monkeypatch):
    monkeypatch.setattr("qkv.web.rest.routes.MAX_BODIES_BYTES", 5000)
    with serving_api(text_run) as server:
        head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:{server.port}\r\n"
            "content-type: application/json\r\ncontent-length: 4000\r\n\r\n"
        ).encode()
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as slow:
            slow.sendall(head + b"{")
            while not server.api._body_bytes:
                time.sleep(0.01)
            record = {"prompt": "a" * 1000, "max_tokens": 2}
            assert error_of(post(server, "/v1/completions", record))[0] == 429
            assert post(server, "/v1/completions", {"prompt": "a", "max_tokens": 2})[0] == 200
        while server.api._body_bytes:
            time.sleep(0.01)


def test_a_mistake_of_ours_is_logged_and_not_shown(text_run, caplog):
    with serving_api(text_run) as server:

        def fail(key, inputs, indices):
            raise RuntimeError("some secret")

        server.api.predictions.queue.compute = fail
        answer = post(server, "/v1/predict", {"input": "a"})
        assert error_of(answer) == (500, "the server made a mistake; its log has the reason")
        assert "some secret" in caplog.text
        assert post(server, "/v1/completions", {"prompt": "a", "max_tokens": 2})[0] == 200


def test_unknown_paths_and_methods(api):
    assert error_of(send(api, "GET", "/v1/chat/completions")) == (404, "GET /v1/chat/completions: Not Found")
    assert error_of(send(api, "GET", "/v1/completions")) == (405, "GET /v1/completions: Method Not Allowed")
    assert error_of(post(api, "/v1/completions/", {})) == (404, "POST /v1/completions/: Not Found")


def test_a_slow_body_blocks_no_other(text_run):
    with serving_api(text_run, body_timeout=0.3) as server:
        head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:{server.port}\r\n"
            "content-type: application/json\r\ncontent-length: 50\r\n\r\n"
        ).encode()
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as slow:
            slow.sendall(head + b"{")
            assert post(server, "/v1/completions", {"prompt": "a", "max_tokens": 2})[0] == 200
            assert slow.recv(4096).startswith(b"HTTP/1.1 408")


def test_metrics(text_run):
    with serving_api(text_run) as server:
        for _ in range(3):
            post(server, "/v1/completions", {"prompt": "alpha", "max_tokens": 4, "temperature": 0})
        send(server, "GET", "/secret/path")
        status, headers, body = send(server, "GET", "/metrics")
    lines = body.decode().splitlines()
    assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert 'qkv_requests_total{route="/v1/completions",status="200"} 3' in lines
    assert 'qkv_requests_total{route="other",status="404"} 1' in lines
    assert 'qkv_tokens_total{kind="completion"} 12' in lines
    assert "qkv_time_to_first_token_seconds_count 3" in lines
    assert 'qkv_request_seconds_count{route="/v1/completions"} 3' in lines
    assert [line for line in lines if line.startswith(("qkv_waiting", "qkv_running", "qkv_state_bytes"))] == [
        "qkv_waiting 0",
        "qkv_running 0",
        "qkv_state_bytes 0",
    ]


def test_an_end_finishes_what_was_accepted_and_tells_the_rest(long_run):
    with serving_api(long_run, max_streams=3, shutdown_seconds=1.0) as server, ThreadPoolExecutor(3) as pool:
        stream = endless(server)
        short = pool.submit(post, server, "/v1/completions", {**ENDLESS, "max_tokens": 60})
        whole = pool.submit(post, server, "/v1/completions", ENDLESS)
        while server.api.engine.active < 3:
            time.sleep(0.005)
        server.stop()
        with pytest.raises(openai.APIError, match="the server is shutting down"):
            list(stream)
        assert error_of(whole.result()) == (503, "the server is shutting down")
        status, _, body = short.result()
        assert (status, json.loads(body)["usage"]["completion_tokens"]) == (200, 60)
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", server.port), timeout=5)


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.flaky(reruns=2)  # seconds on a machine that others use
def test_sigterm_under_load(long_run):
    """Eight short requests finish, eight endless ones get an error, and the process exits within ten seconds."""
    command = [sys.executable, "-c", "from qkv.cli import main; main()", "serve", "--api", str(long_run)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        (address,) = re.findall(r"listening on (http://127\.0\.0\.1:\d+),", process.stdout.readline())
        ask = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=30)
        fields = {"model": "tiny-text", "prompt": "alpha", "temperature": 0}
        with ThreadPoolExecutor(16) as pool:
            endless_streams = [ask.completions.create(max_tokens=500_000, stream=True, **fields) for _ in range(8)]
            for stream in endless_streams:
                next(stream)
            short = [pool.submit(ask.completions.create, max_tokens=200, **fields) for _ in range(8)]
            while accepted(address) < 16:
                time.sleep(0.02)
            started = time.monotonic()
            process.send_signal(signal.SIGTERM)
            errors = list(pool.map(last_error, endless_streams))
            assert process.wait(30) == 0
            took = time.monotonic() - started
            assert [one.result().usage.completion_tokens for one in short] == [200] * 8
        assert set(errors) == {"the server is shutting down"}
        assert took < 10
        assert process.stderr.read() == ""


def accepted(address):
    """Return how many continuations are in flight or have been answered."""
    with urllib.request.urlopen(f"{address}/metrics", timeout=30) as response:
        lines = dict(line.rsplit(" ", 1) for line in response.read().decode().splitlines() if not line.startswith("#"))
    answered = 'qkv_requests_total{route="/v1/completions",status="200"}'
    return sum(int(float(lines.get(name, 0))) for name in ("qkv_waiting", "qkv_running", answered))


def last_error(stream):
    with pytest.raises(openai.APIError) as found:
        list(stream)
    return found.value.message


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_streams": 0}, "max_streams must be at least 1, got 0"),
        ({"max_waiting": -1}, "max_waiting must be at least 0, got -1"),
        ({"timeout": 0.0}, "timeout must be a number of seconds above 0, got 0.0"),
        ({"timeout": float("inf")}, "timeout must be a number of seconds above 0, got inf"),
    ],
)
def test_settings_without_meaning(settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ApiSettings(**settings)
