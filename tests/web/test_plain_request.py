"""The head of a request as the quick parser reads it, and what it leaves to the complete one."""

import pytest

from qkv.web.plain_request import plain_request, request_line

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: a:1\r\ncontent-type: application/json\r\nContent-Length:  2 \r\n"
PLAIN = HEAD + b"\r\n{}"


def test_names_are_lower_case_and_values_have_no_space_around_them():
    found = plain_request(PLAIN, 100)
    expected = [("host", "a:1"), ("content-type", "application/json"), ("content-length", "2")]
    assert found.headers.items() == expected
    assert found.unread == 0


@pytest.mark.parametrize(("arrived", "unread"), [(0, 2), (1, 1), (2, 0)])
def test_what_is_unread_of_the_body(arrived, unread):
    assert plain_request(HEAD + b"\r\n" + b"{}"[:arrived], 100).unread == unread


def test_the_largest_body():
    assert plain_request(PLAIN, 2).unread == 0
    assert plain_request(PLAIN, 1) is None


def with_line(line):
    return HEAD + line + b"\r\n\r\n{}"


@pytest.mark.parametrize("line", [b"connection: Keep-Alive", b"x: caf\xe9", b"x:", b"x: a\tb", b"a-b_c!: :"])
def test_ordinary_lines(line):
    assert plain_request(with_line(line), 100).unread == 0


@pytest.mark.parametrize(
    "data",
    [
        PLAIN + b"P",
        HEAD,
        PLAIN.replace(b"Host: a:1\r\n", b""),
        PLAIN.replace(b"Content-Length:  2 \r\n", b""),
        *(PLAIN.replace(b"  2 ", value) for value in (b"+2", b"-2", b"0x2", b"2,2", b"", b"2" * 20, b"\xb2")),
        *(with_line(line) for line in (b"host: a:1", b"content-length: 2", b"transfer-encoding: chunked", b"expect: ")),
        *(with_line(line) for line in (b"upgrade: h2c", b"connection: close", b"connection: keep-alive, upgrade")),
        *(with_line(line) for line in (b" folded", b"no colon", b"a b: c", b"a : c", b": c", b"x: a\nhost: b")),
        *(with_line(line) for line in (b"x: \x00", b"x: \x7f", b"x: a\rb", b"x: " + b"a" * 9000)),
    ],
)
def test_what_is_unusual_is_left_to_the_complete_parser(data):
    assert plain_request(data, 100) is None


def test_the_first_line():
    assert request_line(PLAIN) == b"POST /v1/completions HTTP/1.1"
    assert request_line(b"POST /v1") == b""
    assert request_line(b"POST /" + b"a" * 100 + b" HTTP/1.1\r\n") == b""
