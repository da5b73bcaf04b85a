"""Start, stop and start again: the lock, `--resume` as a repeatable command, signals before and after training."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from qkv.tasks import tasks
from tests.cli.run import COMMAND, ROOT, qkv
from tests.cli.run import run as run_qkv

XOR = ("train", "xor", "--steps", "4", "--set", "train.validate_every=2")


@contextmanager
def locked(folder):
    """Another process holds the lock of this folder."""
    hold = "import sys, pathlib, qkv.train as t\nwith t.Run(pathlib.Path(sys.argv[1])).lock(): print(); input()"
    command = [sys.executable, "-c", hold, str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline()
        yield
        other.communicate(b"\n")


@pytest.mark.process
def test_a_second_start_in_a_new_folder_writes_nothing(tmp_path):
    folder = tmp_path / "run"
    with locked(folder):
        for more in ((), ("--resume",)):
            said = qkv(*XOR, "--run", str(folder), *more, code=2)
            assert said.splitlines()[-1].startswith("qkv: another process is training in this run folder")
        assert [path.name for path in folder.iterdir()] == ["lock"]
    qkv(*XOR, "--run", str(folder), "--json")


def test_one_command_starts_a_run_and_continues_it(tmp_path):
    """As a scheduler repeats it."""
    command = (*XOR, "--run", str(tmp_path / "run"), "--resume", "--json")
    first, again = run_qkv(*command), run_qkv(*command)
    assert (first.code, again.code) == (0, 0)
    assert f"there is no run in {tmp_path / 'run'} yet: starting one" in first.stderr
    assert "starting one" not in again.stderr
    assert "resuming at step 4" in again.stderr
    assert first.stdout == again.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_the_evaluation_names_what_is_saved(tmp_path, monkeypatch, number):
    folder = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(tasks["xor"], "evaluate", lambda *_: os.kill(os.getpid(), number))
        done = run_qkv(*XOR, "--run", str(folder))
    said = (
        f"qkv: stopped by {number.name}: the model is trained and saved in {folder}, its evaluation was not finished;"
    )
    assert (done.code, done.stderr.splitlines()[-1]) == (
        128 + number,
        f"{said} repeat it with qkv eval {folder} --split test",
    )
    assert json.loads(qkv("eval", str(folder), "--split", "test", "--json"))


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_training_is_one_sentence(tmp_path, number):
    plugin = tmp_path / "slow_plugin.py"
    plugin.write_text(f"import pathlib, time\npathlib.Path({str(tmp_path / 'loading')!r}).touch()\ntime.sleep(60)\n")
    command = [*COMMAND, *XOR, "--run", str(tmp_path / "run"), "--plugin", "slow_plugin"]
    environment = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env=environment) as process:
        while not (tmp_path / "loading").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (128 + number, f"qkv: stopped by {number.name}: training had not started\n")
    assert not (tmp_path / "run").exists()
