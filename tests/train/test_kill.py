"""kill -9, SIGTERM and Ctrl-C at moments that nobody chose."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from qkv.storage import latest_valid_step
from qkv.train import Run
from tests.train.job import Trouble, command, events, losses, outcome
from tests.train.processes import finish, job, wait_for

STEPS = {"steps": 60}


def saving(folder, process=None):
    """Whether something half written is there, of this process or of any."""
    return any((folder / "checkpoints").glob(f"*.tmp-{process.pid if process else '*'}"))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What a run comes to that is left alone, and the seconds that it takes."""
    folder = tmp_path_factory.mktemp("undisturbed")
    finish(folder / "warm", STEPS)
    started = time.monotonic()
    finish(folder / "run", STEPS)
    return outcome(folder / "run"), time.monotonic() - started


@pytest.mark.slow
@pytest.mark.alone
def test_20_of_20_runs_survive_kill_9_to_the_last_bit(tmp_path, undisturbed):
    """Killed one to three times each, every second run inside saving."""
    expected, seconds = undisturbed
    draw, while_saving, kills = random.Random(7), 0, 0
    assert [step for step, _ in expected["losses"]] == list(range(1, 61))
    for trial in range(20):
        folder, inside = tmp_path / str(trial), trial % 2
        slow = Trouble(slow_writing=0.01) if inside else Trouble()
        for _ in range(1 + trial % 3):
            with job(folder, STEPS, slow) as process:
                if inside:
                    wait_for(lambda there=folder, by=process: saving(there, by), process)
                    time.sleep(draw.uniform(0, 0.06))
                else:
                    time.sleep(draw.uniform(0, seconds))
                process.kill()
                process.join()
                while_saving += saving(folder, process)
                kills += process.exitcode == -signal.SIGKILL
        finish(folder, STEPS)
        assert outcome(folder) == expected, trial
        assert not saving(folder)
    assert kills >= 25
    assert while_saving >= 10


@pytest.mark.slow
@pytest.mark.alone
def test_10_of_10_runs_asked_to_stop_save_this_step_and_leave_within_2_seconds(tmp_path, undisturbed):
    """SIGTERM and SIGINT by turns; four of them during a validation."""
    expected, _ = undisturbed
    draw, waits, during_validation = random.Random(11), [], 0
    for trial in range(10):
        folder, number = tmp_path / str(trial), (signal.SIGTERM, signal.SIGINT)[trial % 2]
        validating = trial >= 6
        slow = Trouble(slow_validation=5.0) if validating else Trouble(slow_steps=0.005)
        lines = draw.randint(1, 50)
        with job(folder, STEPS, slow) as process:
            if validating:
                wait_for((folder / "validating").exists, process)
                time.sleep(draw.uniform(0, 0.3))
            else:
                wait_for(lambda there=folder, many=lines: len(losses(there)) >= many, process)
                time.sleep(draw.uniform(0, 0.02))
            asked = time.monotonic()
            os.kill(process.pid, number)
            process.join(10)
            waits.append(time.monotonic() - asked)
            assert process.exitcode == 128 + number
        last = losses(folder)[-1][0]
        newest, problems = latest_valid_step(folder / "checkpoints")
        assert (newest.name, problems) == (f"step-{last:08d}", [])
        during_validation += last % 10 == 0 and [line["step"] for line in events(folder, "validated")][-1:] != [last]
        assert not (folder / "model.safetensors").exists()
        finish(folder, STEPS)
        assert outcome(folder) == expected, trial
    assert during_validation >= 4
    assert max(waits) <= 2


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_group_with_workers(tmp_path, undisturbed, number):
    """As from a terminal: the processes that prepare batches get it too, and must not take the loop down."""
    expected, _ = undisturbed
    line = [sys.executable, *command(tmp_path, STEPS, Trouble(workers=2, slow_steps=0.02))]
    process = subprocess.Popen(
        line, start_new_session=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True
    )
    while len(losses(tmp_path)) < 13:
        assert process.poll() is None
        time.sleep(0.01)
    asked = time.monotonic()
    os.killpg(process.pid, number)
    _, errors = process.communicate(timeout=30)
    assert time.monotonic() - asked <= 2
    assert (process.returncode, errors) == (128 + number, "")
    newest, _ = latest_valid_step(tmp_path / "checkpoints")
    assert newest.name == f"step-{losses(tmp_path)[-1][0]:08d}"
    finish(tmp_path, STEPS)
    assert outcome(tmp_path) == expected


@pytest.mark.slow
@pytest.mark.alone
def test_a_second_signal_ends_at_once(tmp_path, undisturbed):
    """While the first is still being obeyed: the run is killed inside saving, and goes on from before."""
    expected, _ = undisturbed
    with job(tmp_path, STEPS, Trouble(slow_writing=0.5)) as process:
        wait_for(lambda: saving(tmp_path), process)
        os.kill(process.pid, signal.SIGTERM)
        time.sleep(0.1)
        asked = time.monotonic()
        os.kill(process.pid, signal.SIGTERM)
        process.join(10)
        assert process.exitcode == -signal.SIGTERM
        assert time.monotonic() - asked < 0.5
    assert saving(tmp_path)
    finish(tmp_path, STEPS)
    assert outcome(tmp_path) == expected


@pytest.mark.slow
@pytest.mark.alone
def test_every_return_is_in_the_log(tmp_path):
    with job(tmp_path, STEPS, Trouble(slow_steps=0.01)) as process:
        wait_for(lambda: len(losses(tmp_path)) >= 25, process)
        process.kill()
        process.join()
    finish(tmp_path, STEPS)
    (resumed,) = events(tmp_path, "resumed")
    assert (resumed["step"], resumed["exact"], resumed["changed"]) == (20, True, {})
    assert [line["step"] for line in Run(tmp_path).read_metrics() if "loss" in line] == list(range(1, 61))
