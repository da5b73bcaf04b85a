"""A full server: refusals from the first bytes are those of the complete path, and leave the connection in order."""

import json
import re
import socket
import time
from contextlib import contextmanager

from qkv.web.overload import HURRY, WAIT
from tests.web.rest.http import error_of, send
from tests.web.rest.runs import serving_api

TOKEN = "correct-horse-battery"
BODY = json.dumps({"prompt": "alpha", "max_tokens": 2}).encode()
SIZE = len(BODY)


@contextmanager
def full_server(run, **settings):
    """A server without room, and the list of what was refused early."""
    with serving_api(run, **settings) as server:
        early, refuse, has_room = [], server.connections.refuse, server.api.engine.has_room

        def recording(data, client):
            found = refuse(data, client)
            early.extend([found] * (found is not None))
            return found

        server.connections.refuse = recording
        server.api.engine.has_room = lambda count=1: False
        yield server, early
        server.api.engine.has_room = has_room


def head(server, *lines, length=SIZE):
    given = [f"host: 127.0.0.1:{server.port}", "content-type: application/json", f"content-length: {length}", *lines]
    return ("POST /v1/completions HTTP/1.1\r\n" + "\r\n".join(given) + "\r\n\r\n").encode()


def connect(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=20)


def response(line):
    """Read one response as bytes."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = line.recv(1)
        assert piece, data
        data += piece
    (length,) = re.findall(rb"content-length: (\d+)", data)
    body = b""
    while len(body) < int(length):
        body += line.recv(int(length) - len(body))
    return data + body


def is_silent(line, seconds=0.3):
    line.settimeout(seconds)
    try:
        return line.recv(1) is None
    except TimeoutError:
        return True
    finally:
        line.settimeout(20)


def test_both_ways_give_the_same_bytes(text_run):
    with full_server(text_run) as (server, early):
        found = []
        for lines in ((), ("x: 1", "x: 2")):  # of a repeated header, the quick parser knows nothing
            with connect(server) as line:
                line.sendall(head(server, *lines) + BODY)
                found.append(re.sub(rb"date: [^\r]+", b"", response(line)))
        assert len(early) == 1
        assert found[0] == found[1]
        assert found[0].startswith(b"HTTP/1.1 429 Too Many Requests\r\n")
        assert b"\r\nretry-after: 1\r\n" in found[0]
        counted, end = server.api.metrics.requests.values, time.monotonic() + 10
        while sum(counted.values()) < 2 and time.monotonic() < end:  # a response is counted after it is sent
            time.sleep(0.01)
        assert counted == {(("route", "/v1/completions"), ("status", "429")): 2}
        assert "qkv_request_seconds_count" in "\n".join(server.api.metrics.duration.lines())


def test_a_body_that_comes_later_is_dropped(text_run):
    """It looks like a request; the one behind it is another request of the same connection."""
    with full_server(text_run) as (server, early), connect(server) as line:
        inner = head(server, length=0)
        line.sendall(head(server, length=2 * len(inner)))
        assert response(line).startswith(b"HTTP/1.1 429")
        time.sleep(2 * HURRY)
        for part in (inner, inner[:10], inner[10:]):
            line.sendall(part)
            assert is_silent(line)
        assert len(early) == 1
        server.api.engine.has_room = lambda count=1: True
        line.sendall(head(server) + BODY)
        assert response(line).startswith(b"HTTP/1.1 200")


def test_a_body_with_the_next_request_in_one_piece(text_run):
    with full_server(text_run) as (server, early), connect(server) as line:
        line.sendall(head(server))
        assert response(line).startswith(b"HTTP/1.1 429")
        server.api.engine.has_room = lambda count=1: True
        line.sendall(BODY + head(server) + BODY)
        assert response(line).startswith(b"HTTP/1.1 200")
        assert len(early) == 1


def test_pipelined_requests_get_a_response_each(text_run):
    with full_server(text_run) as (server, early), connect(server) as line:
        line.sendall((head(server) + BODY) * 3)
        assert [response(line)[:12] for _ in range(3)] == [b"HTTP/1.1 429"] * 3
        assert early == []


def test_a_body_of_the_complete_path_is_no_request_either(text_run):
    with full_server(text_run) as (server, early), connect(server) as line:
        inner = head(server, length=0)
        line.sendall(head(server, "x: 1", "x: 2", length=len(inner) + 5))
        assert response(line).startswith(b"HTTP/1.1 429")
        time.sleep(2 * HURRY)
        line.sendall(inner)
        assert is_silent(line)
        assert early == []


def test_bytes_that_wait_in_the_complete_parser_are_no_gap(text_run):
    """Half a pipelined request has arrived behind a complete one; the rest must not be read as a request."""
    with full_server(text_run) as (server, early), connect(server) as line:
        half = f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:{server.port}\r\ncontent-length: 9\r\nx: "
        line.sendall(head(server) + BODY + half.encode())
        assert response(line).startswith(b"HTTP/1.1 429")
        time.sleep(2 * HURRY)
        line.sendall(head(server, length=0))  # the value of x, further headers, and a second length
        assert line.recv(12) == b"HTTP/1.1 400"
        assert early == []


def test_a_client_that_asks_again_at_once_waits(text_run):
    with full_server(text_run) as (server, early), connect(server) as line:
        line.sendall(head(server) + BODY)
        assert response(line).startswith(b"HTTP/1.1 429")
        start = time.monotonic()
        line.sendall(head(server) + BODY)
        assert response(line).startswith(b"HTTP/1.1 429")
        assert time.monotonic() - start >= WAIT
        assert len(early) == 1


def test_a_client_that_never_sends_the_body_is_closed(text_run):
    with full_server(text_run, header_timeout=0.4) as (server, _), connect(server) as line:
        line.sendall(head(server))
        response(line)
        end = time.monotonic() + 5
        while time.monotonic() < end:
            try:
                line.sendall(b"{")
                if is_silent(line, 0.1):
                    continue
            except OSError:
                pass
            break
        assert time.monotonic() < end


def test_without_access_a_full_server_says_the_same_as_any_other(text_run):
    with full_server(text_run, token=TOKEN) as (server, early):
        for header in (None, "Bearer wrong-token-of-a-stranger", f"Basic {TOKEN}"):
            assert error_of(send(server, "POST", "/v1/completions", BODY, {"authorization": header}))[0] == 401
        assert early == []
        assert error_of(send(server, "POST", "/v1/completions", BODY))[0] == 429
        assert len(early) == 1
    with full_server(text_run) as (server, early):
        for headers, status in (({"host": "evil.example"}, 421), ({"origin": "http://evil.example"}, 403)):
            assert error_of(send(server, "POST", "/v1/completions", BODY, headers))[0] == status
        assert early == []


def test_other_paths_are_answered(text_run):
    with full_server(text_run) as (server, early):
        assert send(server, "GET", "/healthz")[0] == 200
        assert send(server, "POST", "/v1/predict", b'{"input": "alpha", "tokens": 2}')[0] == 200
        assert send(server, "POST", "/v1/completions", b"{" + b" " * 2**20)[0] == 429
        assert early == []
