"""Malformed and hostile requests, as bytes for a socket."""

import socket

from qkv.web.server import MAX_BODY_BYTES

BODIES = [
    b"[" * 30_000 + b"]" * 30_000,
    b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
    b"\xff\xfe{}",
    b'{"text": "\xc3\x28"}',
    b'{"text": "\\ud800"}',
    b'{"text": NaN}',
    b'{"site": 1e999}',
    b'{"site": ' + b"9" * 5_000 + b"}",
    b"null",
    b"[]",
    b'"x"',
    b"{",
    b"",
    b"x" * (MAX_BODY_BYTES + 1),
    b'{"text": "' + b"a" * 60_000 + b'"}',
    b'{"text": "a", "site": -1}',
    b'{"text": "a", "head": 1.5}',
    b'{"text": "a", "head": true}',
    b'{"text": "a", "kind": "taylor(order=99)", "beams": 1e9, "prefix": "4.4.\\u0000"}',
    b'{"text": "a", "kind": ["__import__"], "row": -9, "prefix": "....", "length_penalty": null}',
    b'{"text": {"a": 1}}',
    b'{"text": "\\u0000\\u202e\\u0000"}',
]
REQUESTS = ["overview", "thumbnails", "head", "token_trace", "versus", "copying", "search", "node", "about", "none"]
REQUESTS += ["..", "%2e%2e", "%00", "a" * 3_000, "head/0"]
PATHS = [
    "/static/../server.py",
    "/static/..%2fserver.py",
    "/static/%2e%2e/%2e%2e/etc/passwd",
    "//etc/passwd",
    "/static/....//....//etc/passwd",
    "/static/%c0%ae%c0%ae/",
    "/static/main.js%00.html",
    "/static/",
    "/static",
    "/api/overview",
    "/%",
    "/%zz",
    "/\\..\\..",
    "/static/main.js/..",
    "/?token=" + "x" * 5_000,
    "/?" + "a&" * 3_000,
]
ORIGINS = ["null", "http://x", "file://", "http://127.0.0.1:1", "https://127.0.0.1", ""]
HOSTS = ["evil", "a" * 999, "127.0.0.1@evil", "[::1]", "127.0.0.1", ""]
COOKIES = ["=", ";;;", "qkv=" + "x" * 9_000, "\xff\xfe=1", 'qkv="\\999"', "a=b; " * 1_000]
METHODS = ["PUT", "DELETE", "OPTIONS", "TRACE", "HEAD", "FROB"]


def raw(server, data):
    """Send these bytes; return the response, empty if the server hangs up."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=2) as line:
        try:
            line.sendall(data)
            return line.recv(4096)
        except (TimeoutError, ConnectionError):
            return b""


def hostile(server):
    """Return more than 500 requests; each is complete, unless truncation is the point."""
    cookie = f"cookie: qkv-{server.port}={server.token}\r\n"
    host = f"host: 127.0.0.1:{server.port}\r\n"
    post = f"POST /api/overview HTTP/1.1\r\n{host}{cookie}content-type: application/json\r\n".encode()

    def post_json(name, body):
        first = f"POST /api/{name} HTTP/1.1\r\n{host}{cookie}content-type: application/json\r\nconnection: close\r\n"
        return first.encode() + f"content-length: {len(body)}\r\n\r\n".encode() + body

    def send(first, headers):
        return f"{first} HTTP/1.1\r\n{headers}connection: close\r\n\r\n".encode("latin-1")

    found = [post_json(name, body) for body in BODIES for name in REQUESTS]
    found += [send(f"GET {path}", host + cookie) for path in PATHS] * 5
    found += [send("GET /", f"{host}{cookie}origin: {origin}\r\n") for origin in ORIGINS] * 10
    found += [send("GET /", f"host: {name}\r\n{cookie}") for name in HOSTS] * 10
    found += [send("GET /", f"{host}cookie: {value}\r\n") for value in COOKIES] * 5
    found += [send(f"{method} /api/overview", host + cookie) for method in METHODS] * 5
    found += [send("GET /", host)] * 40
    found += [b"\0" * 100 + b"\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01" + b"\0" * 200 + b"\r\n\r\n", b"A" * 100_000]
    found += [post + b"content-length: -5\r\n\r\n{}", post + b"transfer-encoding: chunked\r\n\r\nzz\r\n\r\n"]
    found += [post + b"content-length: 1\r\ncontent-length: 2\r\n\r\n{}"]
    # a client that stops in the middle of its request
    found += [post + b"content-length: 5000\r\n\r\n" + b'{"text": "a'] * 5
    return found
