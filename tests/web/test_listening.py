import re
import resource

import pytest

from qkv.errors import QkvError
from qkv.web.connections import raise_file_limit
from qkv.web.listening import is_loopback, listen, parse_host


def test_hosts():
    assert [parse_host(host) for host in ("localhost", "127.0.0.1", "0.0.0.0", "::1")] == [
        "127.0.0.1",
        "127.0.0.1",
        "0.0.0.0",
        "::1",
    ]
    assert [is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "0.0.0.0", "::", "192.168.0.1")] == [
        *[True] * 3,
        *[False] * 3,
    ]
    for wrong in ("", "example.org", "127.0.0", "127.0.0.1:80"):
        with pytest.raises(ValueError, match=re.escape(f"or localhost, got {wrong!r}")):
            parse_host(wrong)


def test_an_address_that_is_not_of_this_machine():
    with pytest.raises(QkvError, match=r"cannot listen on port \d+ of 192\.0\.2\.1 \("):
        listen(0, "192.0.2.1")


def test_the_limit_of_files_is_raised_as_far_as_allowed(monkeypatch):
    changed = []
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: changed.append(limits))
    for soft, hard in ((256, 4096), (256, 1000), (5000, 6000), (256, resource.RLIM_INFINITY)):
        monkeypatch.setattr(resource, "getrlimit", lambda kind, limits=(soft, hard): limits)
        raise_file_limit(1000)
    assert changed == [(2000, 4096), (1000, 1000), (2000, resource.RLIM_INFINITY)]
