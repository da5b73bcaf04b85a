"""Read the head of an ordinary request in a fraction of the time that a complete HTTP parser takes.

A server that refuses most requests spends its time on their heads. Here only requests are read whose meaning is beyond
doubt; for anything unusual the answer is None, and the complete parser decides.
"""

import re
from typing import NamedTuple

from starlette.datastructures import Headers

MAX_HEAD = 8192
"""Longest head, in bytes."""
MAX_LINE = 64
"""Longest request line."""
HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t\x20-\x7e\x80-\xff]*)")
UNUSUAL = frozenset({b"expect", b"transfer-encoding", b"upgrade"})


class PlainRequest(NamedTuple):
    """A request with a body of known length."""

    headers: Headers
    unread: int
    """Bytes of the body that have not arrived yet."""


def request_line(data: bytes) -> bytes:
    """Return the first line, without its end; empty if there is none, or a long one."""
    line, end, _ = data[:MAX_LINE].partition(b"\r\n")
    return line if end else b""


def plain_request(data: bytes, max_body: int) -> PlainRequest | None:
    """Return the request that these bytes begin with, and hold alone; None: another parser must read it."""
    end = data.find(b"\r\n\r\n", 0, MAX_HEAD)
    if end < 0:
        return None
    lines = [HEADER.fullmatch(line) for line in data[:end].split(b"\r\n")[1:]]
    raw = [(line[1].lower(), line[2].rstrip(b" \t")) for line in lines if line is not None]
    found = dict(raw)
    if len(found) < len(lines) or not UNUSUAL.isdisjoint(found) or b"host" not in found:
        return None
    length = found.get(b"content-length", b"")
    if not (length.isdigit() and len(length) < 16) or found.get(b"connection", b"keep-alive").lower() != b"keep-alive":
        return None
    unread = end + 4 + int(length) - len(data)
    return PlainRequest(Headers(raw=raw), unread) if unread >= 0 and int(length) <= max_body else None
