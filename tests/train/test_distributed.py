"""Two processes under torchrun against one."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from qkv.storage import latest_valid_step
from tests.train.job import Trouble, command, losses, outcome
from tests.train.processes import finish

STEPS = {"steps": 130, "batch_size": 120, "ema_decay": 0.0}
"""Of 241 examples: batches of 120, 120 and 1, so that in every third step one of two processes has none."""
EXACT = Trouble(double=True, note_ids=True)
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def start(folder, trouble=EXACT):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*TORCHRUN, *command(folder, STEPS, trouble)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def end(process, seconds=60):
    """The exit status; a job that hangs is a failure."""
    try:
        output, _ = process.communicate(timeout=seconds)
    finally:
        process.kill()
    return process.returncode, output.decode()


def wait_for_step(folder, step, process):
    limit = time.monotonic() + 60
    while len(losses(folder)) < step:
        assert process.poll() is None
        assert time.monotonic() < limit
        time.sleep(0.01)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A run of two processes that was left alone."""
    folder = tmp_path_factory.mktemp("two") / "run"
    status, output = end(start(folder))
    assert status == 0, output
    return folder


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one") / "run"
    finish(folder, STEPS, EXACT)
    return folder


def ids(folder, rank):
    """The ids of each batch; the first line is the look at the data before training."""
    return [json.loads(line) for line in (folder / f"ids-{rank}").read_text().splitlines()[1:]]


@pytest.mark.slow
@pytest.mark.alone
def test_losses_of_two_processes_and_of_one_differ_by_less_than_1e_10(one, two):
    """130 steps in float64."""
    alone, together = losses(one), losses(two)
    assert [step for step, _ in together] == list(range(1, 131))
    assert max(abs(a - b) for (_, a), (_, b) in zip(alone, together, strict=True)) <= 1e-10


@pytest.mark.slow
@pytest.mark.alone
def test_0_of_10000_ids_differ_between_one_process_and_two(one, two):
    batches = ids(one, 0)
    assert sum(map(len, batches)) > 10_000
    for rank in (0, 1):
        # one that has none of its own computes the first, which does not count
        expected = [batch[rank::2] or batch[:1] for batch in batches]
        assert ids(two, rank) == expected
    assert sum(len(batch) == 1 for batch in batches) == 43


@pytest.mark.slow
@pytest.mark.alone
def test_one_of_two_killed_ends_the_job_and_the_next_ends_the_same(tmp_path, two):
    """Stopped by SIGTERM, resumed, one process killed with -9, resumed: 4 starts, the same bits."""
    folder, slow = tmp_path / "run", Trouble(double=True, slow_steps=0.05)
    process = start(folder, slow)
    wait_for_step(folder, 7, process)
    process.send_signal(signal.SIGTERM)
    status, _ = end(process)
    assert status != 0
    last = losses(folder)[-1][0]
    assert latest_valid_step(folder / "checkpoints")[0].name == f"step-{last:08d}"

    process = start(folder, slow)
    wait_for_step(folder, last + 15, process)
    killed = time.monotonic()
    os.kill(int((folder / "process-1").read_text()), signal.SIGKILL)
    status, output = end(process)
    assert status != 0, output
    assert time.monotonic() - killed < 60

    status, output = end(start(folder))
    assert status == 0, output
    assert outcome(folder) == outcome(two)
