"""Half-open connections, clients that have gone, and more requests than the worker can take."""

import http.client
import json
import resource
import socket
import subprocess
import sys
import threading
import time

import pytest

from qkv import runs
from qkv.cancellation import CanceledError, cancelable, check_canceled
from qkv.explain import search_tree
from qkv.inference.seq2seq import search_limits
from qkv.web.backend import Backend
from qkv.web.connections import connection_limit
from tests.web.client import request
from tests.web.runs import serving


class StubBackend(Backend):
    """Respond to `about` at once, or as `compute` decides."""

    def __init__(self, compute=dict):
        self.compute = compute

    def about(self):
        return self.compute()

    def view_model(self, params):
        raise AssertionError


def connect(server, data=b""):
    line = socket.create_connection(("127.0.0.1", server.port), timeout=5)
    line.sendall(data)
    return line


def question(server):
    return (
        f"POST /api/about HTTP/1.1\r\nhost: 127.0.0.1:{server.port}\r\ncookie: qkv-{server.port}={server.token}\r\n"
        "content-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
    ).encode()


def is_closed(line, drip=b"", seconds=4.0):
    """Whether the server closes this connection, even if something is sent from time to time."""
    line.settimeout(0.1)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if drip:
                line.sendall(drip)
            if not line.recv(65536):
                return True
        except TimeoutError:
            continue
        except OSError:
            return True
    return False


@pytest.mark.parametrize(
    ("first", "drip"),
    [
        (b"", b""),
        (b"GET / HTTP/1.1\r\nhost: 127", b""),
        (b"GET / HTTP/1.1\r\nhost: 127", b"0"),
        (b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", b""),
        (b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", b"G"),
        (b"GET / HTTP/1.1\r\nhost: a\r\ncontent-length: 9999\r\n\r\n", b"x"),
    ],
    ids=["silent", "half a header", "byte by byte", "idle", "a second request", "a body that nobody reads"],
)
def test_a_connection_that_asks_nothing_is_closed(first, drip):
    with serving(StubBackend(), header_timeout=0.4) as server, connect(server, first) as line:
        assert is_closed(line, drip)


def test_a_slow_answer_is_not_cut_off():
    """The deadline is one of the headers, not of the computation."""
    with serving(StubBackend(lambda: time.sleep(0.8) or {}), header_timeout=0.3) as server:
        assert request(server, "POST", "/api/about", b"{}")[0] == 200


def test_the_oldest_idle_connection_makes_room():
    release = threading.Event()
    with serving(StubBackend(lambda: release.wait(20) and {}), max_connections=6) as server:
        busy = connect(server, question(server))
        while not server.workbench.worker.pending:
            time.sleep(0.01)
        half_open = [connect(server, b"GET / HT") for _ in range(30)]
        assert [request(server, "GET", "/")[0] for _ in range(5)] == [200] * 5
        assert len(server.connections) <= 6
        assert is_closed(half_open[0])
        release.set()
        assert busy.recv(100).startswith(b"HTTP/1.1 200")
        for line in (busy, *half_open):
            line.close()


def test_new_connections_wait_for_busy_ones():
    release = threading.Event()
    with serving(StubBackend(lambda: release.wait(20) and {}), max_connections=2) as server:
        busy = [connect(server, question(server)) for _ in range(2)]
        while server.workbench.worker.pending < 2:
            time.sleep(0.01)
        waiting = connect(server, question(server))
        time.sleep(0.3)
        assert server.workbench.worker.pending == 2
        release.set()
        assert all(line.recv(100).startswith(b"HTTP/1.1 200") for line in (*busy, waiting))
        waiting.close()
        for line in busy:
            line.close()


def test_a_connection_that_is_accepted_while_the_server_ends_is_closed():
    with serving(StubBackend(), header_timeout=60) as server:
        server.connections.is_closing = True
        with connect(server, b"GET / HT") as line:
            assert is_closed(line)


def test_fewer_connections_where_few_files_may_be_open(monkeypatch):
    for files, expected in ((1 << 20, 128), (256, 128), (100, 50), (2, 4), (resource.RLIM_INFINITY, 128)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, files=files: (files, files))
        assert connection_limit() == expected


SERVE = """
import resource, sys
from tests.web.test_overload import StubBackend
from qkv.web.server import Server
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
server = Server(StubBackend(), token="t", max_connections=int(sys.argv[1]), header_timeout=3)
print(server.port, flush=True)
server.run()
"""


@pytest.mark.slow
@pytest.mark.parametrize("max_connections", [24, 1000])  # with 1,000 the descriptors run out first
def test_few_descriptors_and_many_half_open_connections(max_connections):
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(max_connections)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        port = int(process.stdout.readline())
        lines = []
        for _ in range(200):
            line = socket.create_connection(("127.0.0.1", port), timeout=5)
            line.sendall(b"GET / HTTP/1.1\r\nhost: 127.0.")
            lines.append(line)
        start = time.monotonic()
        while time.monotonic() < start + 10:  # at most 3 until the first are closed
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=5) as line:
                    line.sendall(f"GET / HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncookie: qkv-{port}=t\r\n\r\n".encode())
                    if line.recv(100).startswith(b"HTTP/1.1 200"):
                        break
            except OSError:
                time.sleep(0.2)
        took = time.monotonic() - start
        assert took < (4 if max_connections == 24 else 9)
        for line in lines:
            line.close()
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=20)
    assert errors == ""


def test_a_question_whose_client_has_gone_is_never_computed():
    computed, release = [], threading.Event()

    def compute():
        computed.append(len(computed))
        release.wait(20)
        return {}

    with serving(StubBackend(compute)) as server:
        first, second, third = (connect(server, question(server)) for _ in range(3))
        while server.workbench.worker.pending < 3:
            time.sleep(0.01)
        second.close()
        while server.workbench.worker.pending > 2:
            time.sleep(0.01)
        release.set()
        assert all(line.recv(100).startswith(b"HTTP/1.1 200") for line in (first, third))
        assert len(computed) == 2
        first.close()
        third.close()


def test_a_computation_ends_at_its_next_step_when_its_client_has_gone():
    steps, ended = [], threading.Event()

    def compute():
        ended.clear()
        try:
            for step in range(2000):
                steps.append(step)
                check_canceled()
                time.sleep(0.01)
        finally:
            ended.set()
        return {}

    with serving(StubBackend(compute)) as server:
        with connect(server, question(server)):
            while len(steps) < 3:
                time.sleep(0.01)
        while server.workbench.worker.pending:
            time.sleep(0.01)
        assert len(steps) < 1000
        with connect(server, question(server)):  # a server that stops does not wait either
            while steps[-1] > 2:
                time.sleep(0.01)
            server.stop()
            assert ended.wait(8)


def test_a_search_is_canceled_between_steps(pairs_run):
    _, _, model = runs.load(pairs_run)
    asked = []

    def is_canceled():
        asked.append(None)
        return len(asked) > 2

    with pytest.raises(CanceledError), cancelable(is_canceled):
        search_tree(model, [4, 5], search_limits(model), beams=2)
    assert len(asked) == 3
    check_canceled()  # outside of the block nothing is canceled


def test_under_overload_the_worker_is_never_idle():
    """32 clients in a closed loop: what is not rejected is computed as fast as by two clients."""

    def work():
        end = time.thread_time() + 0.02  # of this thread, so that time lost to other threads is seen
        while time.thread_time() < end:
            pass
        return {}

    def answered(server, clients, seconds=1.5):
        statuses = []
        end = time.monotonic() + seconds

        def ask():
            line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
            headers = {"cookie": f"qkv-{server.port}={server.token}", "content-type": "application/json"}
            while time.monotonic() < end:
                line.request("POST", "/api/about", b"{}", headers)
                response = line.getresponse()
                response.read()
                statuses.append(response.status)
            line.close()

        threads = [threading.Thread(target=ask) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(statuses) <= {200, 429}
        return statuses.count(200), statuses.count(429)

    with serving(StubBackend(work)) as server:
        few, _ = answered(server, 2)
        many, rejected = answered(server, 32)
        assert rejected > 10
        assert rejected < 600
        assert many > 0.5 * few


def test_the_first_rejection_comes_at_once():
    release = threading.Event()
    backend = StubBackend(lambda: release.wait(20) and {})
    with serving(backend, max_pending=1) as server, connect(server, question(server)) as busy:
        while not server.workbench.worker.pending:
            time.sleep(0.01)
        start = time.monotonic()
        status, headers, body = request(server, "POST", "/api/about", b"{}")
        assert time.monotonic() - start < 0.2
        assert (status, headers["retry-after"]) == (429, "1")
        assert "too many requests" in json.loads(body)["error"]
        release.set()
        assert busy.recv(100).startswith(b"HTTP/1.1 200")
