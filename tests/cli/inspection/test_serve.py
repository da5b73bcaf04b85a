"""`qkv serve` as a user runs it."""

import re
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
from tests.web.runs import train_recall


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
