"""`qkv serve` as a user runs it."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path

import pytest

from qkv.web.listening import listen
from tests.cli.run import ROOT, qkv
from tests.web.runs import train_recall, train_xor


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train_recall(tmp_path_factory.mktemp("serve"))


@pytest.mark.process
def test_it_prints_an_address_serves_it_and_ends(run):
    command = [sys.executable, "-c", "from qkv.cli import main; main()", "serve", str(run)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        (address,) = re.findall(r"open (http://127\.0\.0\.1:\d+/\?token=\S{32})$", line.strip())
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        with opener.open(address) as response:
            assert b"main.js" in response.read()
            assert response.url == re.sub(r"\?.*", "", address)
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(re.sub(r"\?.*", "", address))
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=30)
    assert process.returncode == 0
    assert stderr == ""


def test_the_model_that_comes_with_qkv(tmp_path):
    page = tmp_path / "page.html"
    assert "page.html" in qkv("look", "pronounce", "attention", "--out", str(page))
    assert "pronounce: attention" in page.read_text()


def test_bad_use(run, tmp_path):
    with listen(0) as taken:
        port = taken.getsockname()[1]
        assert f"cannot listen on port {port}" in qkv("serve", str(run), "--port", str(port), code=2)
    assert "there is no such run folder" in qkv("serve", str(Path(run).parent / "none"), code=2)
    assert "port must be from 0 to 65535" in qkv("serve", str(run), "--port", "70000", code=2)


@pytest.mark.process
def test_the_api_prints_a_line_that_works(tmp_path):
    run, token = train_xor(tmp_path), "a-token-that-nobody-guesses"
    command = [sys.executable, "-c", "from qkv.cli import main; main()", "serve", "--api", str(run)]
    environment = {**os.environ, "QKV_API_TOKEN": token}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env=environment, **pipes) as process:
        lines = [process.stdout.readline() for _ in range(4)]
        assert re.search(r"listening on http://127\.0\.0\.1:\d+, model 'xor'$", lines[0].strip())
        assert 'authorization: Bearer $QKV_API_TOKEN"' in lines[1]
        _, address, *_, body = shlex.split(lines[1])
        headers = {"content-type": "application/json", "authorization": f"Bearer {token}"}
        request = urllib.request.Request(address, body.encode(), headers)
        with urllib.request.urlopen(request) as response:
            assert len(json.load(response)["data"]) == 1
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(urllib.request.Request(address, body.encode(), {"content-type": "application/json"}))
        process.send_signal(signal.SIGTERM)
        stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 0
    assert stderr == ""
    assert token not in "".join(lines) + stdout


@pytest.mark.process
def test_sigterm_before_the_server_runs_ends_it(tmp_path):
    """The signal comes right after the line of the address, before uvicorn listens to signals."""
    code = (
        "import os, signal, typer; echo = typer.echo\n"
        "def echo_and_end(text): echo(text); os.kill(os.getpid(), signal.SIGTERM)\n"
        "typer.echo = echo_and_end\n"
        "from qkv.cli import main; main()"
    )
    command = [sys.executable, "-c", code, "serve", "--api", str(train_xor(tmp_path))]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    assert "listening on" in found.stdout


def test_options_of_the_page_and_of_the_api(run, monkeypatch):
    monkeypatch.delenv("QKV_API_TOKEN", raising=False)
    api = ["serve", "--api", str(run)]
    for option, value in (("--host", "::1"), ("--token", "x" * 20), ("--max-streams", "0"), ("--timeout", "5")):
        assert f"{option} has no effect here: it needs --api" in qkv("serve", str(run), option, value, code=2)
    assert "--browser has no effect here: --api has no page to open" in qkv(*api, "--browser", code=2)
    assert "max_streams must be at least 1, got 0" in qkv(*api, "--max-streams", "0", code=2)
    assert "a run of task 'recall' has nothing to serve" in qkv(*api, code=2)


def test_a_weak_token_is_not_repeated(tmp_path):
    stderr = qkv("serve", "--api", str(train_xor(tmp_path)), "--token", "hunter2", code=2)
    assert "the token must have at least 16 printable ASCII characters" in stderr
    assert "hunter2" not in stderr
