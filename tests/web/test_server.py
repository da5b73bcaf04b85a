import json
import os
import socket
import threading
import time
from pathlib import Path

import pytest

from qkv.errors import QkvError
from qkv.web.backend import Backend, RunBackend, newest_run
from qkv.web.listening import listen
from tests.web.client import query, query_error, request
from tests.web.hostile import hostile, raw
from tests.web.runs import serving


def test_the_page_and_its_files(server):
    status, _, body = request(server, "GET", "/")
    assert status == 200
    assert b'<script type="module" src="/static/main.js">' in body
    assert request(server, "GET", "/static/main.js")[1]["content-type"].startswith("text/javascript")
    assert request(server, "GET", "/static/none.js")[0] == 404


def test_nothing_may_be_loaded_from_elsewhere(server):
    for path in ("/", "/static/app.css", "/nowhere"):
        policy = request(server, "GET", path)[1]["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self';")
        assert "http" not in policy
        assert "unsafe" not in policy


def test_the_token_becomes_a_cookie(server):
    status, headers, _ = request(server, "GET", f"/?token={server.token}", headers={"cookie": None})
    assert (status, headers["location"]) == (303, "/")
    assert headers["set-cookie"] == f"qkv-{server.port}={server.token}; HttpOnly; Path=/; SameSite=strict"


@pytest.mark.parametrize("other", ['prefs={"a":1}', "a[b]=1", "flag", "d=hello world", "n=\xe9", "", "=", 'q="x'])
def test_cookies_of_other_servers_do_not_hide_ours(server, other):
    """A browser sends all cookies of a host, whatever the port."""
    ours = f"qkv-{server.port}={server.token}"
    for cookies in (f"{other}; {ours}", f"{ours}; {other}", f"{other};{ours};{other}"):
        assert request(server, "GET", "/", headers={"cookie": cookies})[0] == 200
    assert request(server, "GET", "/", headers={"cookie": f"{other}; {ours}x"})[0] == 403
    assert request(server, "GET", "/", headers={"cookie": f"{other}; x{ours}"})[0] == 403


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/", {"cookie": None}, 403),
        ("/?token=wrong", {}, 403),
        ("/?token=%ff%00", {}, 403),
        ("/", {"cookie": "qkv-1=x"}, 403),
        ("/static/main.js", {"cookie": None}, 403),
        ("/", {"host": "evil.example"}, 421),
        ("/", {"host": "127.0.0.1"}, 421),
        ("/", {"origin": "http://evil.example"}, 403),
        ("/", {"origin": "null"}, 403),
        ("/", {"sec-fetch-site": "cross-site"}, 403),
    ],
)
def test_requests_without_access(server, path, headers, status):
    found, _, body = request(server, "GET", path, headers=headers)
    assert found == status
    assert body.startswith(b"qkv: ")


def test_localhost_is_this_machine_too(server):
    assert request(server, "GET", "/", headers={"host": f"localhost:{server.port}"})[0] == 200


def test_requests_that_fail(server):
    assert query_error(server, "overview", text="") == (400, "the text is empty; type something for the model to read")
    assert query_error(server, "overview", text="a" * 25) == (
        400,
        "the text has 25 tokens; this model takes at most 24",
    )
    assert query_error(server, "overview", text="ab", answer="A " * 24)[1].startswith("the answer has 24 tokens")
    assert "unknown request 'overvew'; did you mean 'overview'?" in query_error(server, "overvew")[1]
    assert query_error(server, "head", text="abc", site=99)[1] == "site must be a whole number from 0 to 5, got 99"
    assert query_error(server, "head", text="abc", head="x")[1] == "head must be a whole number from -1 to 2, got x"
    assert query_error(server, "overview", text=["a"])[1] == "text must be a text, got a list"
    assert query(server, "overview", text="abc")[0]["tokens"]["source"] == ["a", "b", "c"]


def test_unseen_letters_are_noted_and_other_case_is_taken(server):
    assert query(server, "overview", text="aBz")[0]["notes"] == ["never seen in training, read as unknown: z"]
    many = query(server, "overview", text="a bghijklmnop")[0]["notes"]
    assert many == ["never seen in training, read as unknown: \u2423 (a space) g h i j k l m and 3 more"]


@pytest.mark.slow
def test_hostile_requests_do_no_harm(pairs_run):
    with serving(RunBackend(pairs_run), body_timeout=0.5) as server:
        requests = hostile(server)
        assert len(requests) >= 500
        statuses = [raw(server, data)[9:12] for data in requests]
        assert [status for status in statuses if status.startswith(b"5")] == []
        assert len([status for status in statuses if status.startswith(b"4")]) >= 400
        assert query(server, "overview", text="abc")[0]["tokens"]["source"] == ["a", "b", "c"]


def test_a_slow_client_gets_408_and_blocks_no_other(pairs_run):
    with serving(RunBackend(pairs_run), body_timeout=0.3) as server:
        head = (
            f"POST /api/overview HTTP/1.1\r\nhost: 127.0.0.1:{server.port}\r\n"
            f"cookie: qkv-{server.port}={server.token}\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n"
        ).encode()
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as slow:
            slow.sendall(head + b"{")
            assert query(server, "overview", text="abc")[0]["tokens"]["source"] == ["a", "b", "c"]
            assert slow.recv(4096).startswith(b"HTTP/1.1 408")


class SlowBackend(Backend):
    """Respond to `about` when `may_answer` is set."""

    def __init__(self):
        self.may_answer = threading.Event()

    def about(self):
        self.may_answer.wait(20)
        return {}

    def view_model(self, params):
        raise AssertionError


def test_too_many_pending_requests_get_429():
    backend = SlowBackend()
    with serving(backend, max_pending=3) as server:
        answers = []
        threads = [
            threading.Thread(target=lambda: answers.append(request(server, "POST", "/api/about", b"{}")))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        while server.workbench.worker.pending < 3:
            time.sleep(0.01)
        status, headers, body = request(server, "POST", "/api/about", b"{}")
        assert (status, headers["retry-after"]) == (429, "1")
        assert "too many requests" in json.loads(body)["error"]
        backend.may_answer.set()
        for thread in threads:
            thread.join()
        assert [status for status, _, _ in answers] == [200] * 3
        assert request(server, "POST", "/api/about", b"{}")[0] == 200


def test_a_client_that_disconnects_frees_its_slot():
    backend = SlowBackend()
    with serving(backend, max_pending=1) as server:
        head = (
            f"POST /api/about HTTP/1.1\r\nhost: 127.0.0.1:{server.port}\r\ncookie: qkv-{server.port}={server.token}\r\n"
            "content-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
        ).encode()
        with socket.create_connection(("127.0.0.1", server.port)) as gone:
            gone.sendall(head)
            while server.workbench.worker.pending < 1:
                time.sleep(0.01)
        backend.may_answer.set()
        while server.workbench.worker.pending:
            time.sleep(0.01)
        assert request(server, "POST", "/api/about", b"{}")[0] == 200


def test_a_port_in_use():
    with listen(0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(QkvError, match=f"cannot listen on port {port} .*choose another with --port"):
            listen(port)
    with pytest.raises(ValueError, match="port must be from 0 to 65535, got 70000"):
        listen(70000)


def test_the_bundled_model_and_its_code():
    backend = RunBackend(Path("pronounce"))
    assert (backend.about()["name"], backend.about()["run"]) == ("pronounce", "pronounce")
    view_model, found = backend.view_model({"text": "attention", "answer": ""}), {}
    exec("\n".join(view_model.code), found)
    assert len(found["records"]) == len(view_model.sites)


def test_the_newest_run(tmp_path):
    assert newest_run(tmp_path) == Path("pronounce")
    for age, name in ((100, "old"), (0, "new"), (50, "middle")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"")
        moment = time.time() - age
        os.utime(tmp_path / name / "model.safetensors", (moment, moment))
    assert newest_run(tmp_path).name == "new"
    (tmp_path / "new" / "config.json").write_text(
        '{"format": 1, "task": "xor", "family": "network", "model": {}, "train": {"steps": 1}, "data": {}}'
    )
    assert newest_run(tmp_path).name == "middle"
