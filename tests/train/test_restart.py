"""`qkv train` in two processes under torchrun, of which one is killed."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from qkv.train import Run
from tests.cli.run import ROOT, qkv

TRAIN = (
    *("-m", "--", "qkv", "train", "recall", "--steps", "120", "--device", "cpu", "--set", "model.dim=8"),
    *("--set", "train.batch_size=2", "--set", "train.validate_every=10", "--set", "data.pairs=4"),
    *("--set", "data.length=16", "--set", "data.vocabulary=32", "--set", "data.examples=4"),
)
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def start(folder, *options, mesh="data=2"):
    command = [*TORCHRUN, *options, "--log-dir", str(folder.parent / f"{folder.name}-logs"), "--redirects", "3"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command += [*TRAIN, "--mesh", mesh, "--run", str(folder)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def kill_rank(rank, folder, process):
    """Kill one worker with -9 after some steps."""
    limit = time.monotonic() + 60
    while len(Run(folder).read_metrics()) < 25:
        assert process.poll() is None
        assert time.monotonic() < limit
        time.sleep(0.01)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (chosen,) = [c for c in children if f"\0RANK={rank}\0".encode() in Path(f"/proc/{c}/environ").read_bytes()]
    os.kill(int(chosen), signal.SIGKILL)


def losses(folder):
    return [(line["step"], line["loss"]) for line in Run(folder).read_metrics() if "loss" in line]


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("mesh", ["data=2", "shard=2"])
def test_restarted_workers_resume(tmp_path, mesh):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert start(whole, mesh=mesh).wait(100) == 0
    process = start(killed, "--max-restarts=2", mesh=mesh)
    kill_rank(1, killed, process)
    assert process.wait(100) == 0
    assert losses(killed) == losses(whole)
    assert (killed / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    (ended,) = (tmp_path / "killed-logs").rglob("attempt_0/0/stderr.log")
    said = ended.read_text()
    assert "Traceback" not in said
    assert re.fullmatch(
        r"qkv: rank 0: rank 1 ended in step \d+ without an error: killed, or out of memory; "
        "--resume continues from the last checkpoint",
        said.splitlines()[-1],
    )


def test_restarts_without_a_folder_are_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "2")
    monkeypatch.chdir(tmp_path)
    assert "torchrun --max-restarts needs --run" in qkv("train", "xor", code=2)
