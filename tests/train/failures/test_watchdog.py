"""One of two processes fails: both end, and say why."""

import math
import signal

import pytest

from qkv.train import Compute, Run
from tests.train.failures.ranks import FAILURES, STALL_LIMIT, fail_in, said, slow_down, two_ranks
from tests.train.loops import loop_in

SECONDS = 60
CONTINUE = "--resume continues from the last checkpoint\n"


def ends(folder, how):
    """Exit codes and sentences of both processes, which end by themselves."""
    folder.mkdir(exist_ok=True)
    with two_ranks(folder, {"steps": 100_000}, fail_in, how) as processes:
        for process in processes:
            process.join(SECONDS)
        codes = [process.exitcode for process in processes]
    return codes, said(folder)


@pytest.mark.parametrize("seconds", [-1.0, 4.9, math.inf, math.nan])
def test_limits_that_make_no_sense(seconds):
    with pytest.raises(ValueError, match=f"stall_limit must be 0 or at least 5 seconds, got {seconds}"):
        Compute(stall_limit=seconds)


def test_the_errors_of_one_process_have_no_rank(tmp_path):
    loop = loop_in(tmp_path, steps=3)
    loop.report = lambda _: FAILURES["raise"]()
    with pytest.raises(ValueError, match=r"^row 7 has no target$") as caught:
        loop.train()
    assert not hasattr(caught.value, "__notes__")


@pytest.mark.process
def test_one_raises(tmp_path):
    codes, (other, failed) = ends(tmp_path, "raise")
    assert codes == [2, 2]
    assert failed == "qkv: rank 1, step 30: row 7 has no target\n"
    assert other == f"qkv: rank 0: rank 1 failed in step 30: row 7 has no target; {CONTINUE}"


@pytest.mark.slow
@pytest.mark.process
def test_one_runs_out_of_memory(tmp_path):
    codes, (other, failed) = ends(tmp_path, "memory")
    assert codes == [2, 2]
    cause = (
        "not enough memory (you tried to allocate 274877906944 bytes); a new run needs less with a smaller "
        "train.batch_size, more train.accumulation_steps, or train.recompute=true"
    )
    assert failed == f"qkv: rank 1, step 30: {cause}\n"
    assert other == f"qkv: rank 0: rank 1 failed in step 30: {cause}; {CONTINUE}"


@pytest.mark.slow
@pytest.mark.process
def test_one_is_killed(tmp_path):
    codes, (other, failed) = ends(tmp_path, "kill")
    assert codes == [2, -signal.SIGKILL]
    assert failed == ""
    assert other == f"qkv: rank 0: rank 1 ended in step 30 without an error: killed, or out of memory; {CONTINUE}"


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.process
def test_one_hangs(tmp_path):
    """In Python: its watchdog still runs, and knows where."""
    codes, (other, failed) = ends(tmp_path, "hang")
    assert codes == [2, 2]
    start, _, where = failed.partition(" s in a step, at failures/ranks.py:")
    assert int(start.removeprefix("qkv: rank 1, step 30: no progress for ")) >= STALL_LIMIT
    assert where.endswith(f" in <lambda>; {CONTINUE}")
    assert other == f"qkv: rank 0: rank 1 failed in step 30: {failed.removeprefix('qkv: rank 1, step 30: ')}"


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.process
def test_one_is_blocked_in_native_code(tmp_path):
    """No thread of it runs, so the other one speaks, and a timer ends it."""
    codes, (other, failed) = ends(tmp_path, "block")
    assert codes == [2, 1]
    assert failed == ""
    start, _, end = other.partition(" s: ")
    assert end == f"the process is stopped, or blocked in native code; {CONTINUE}"
    assert int(start.removeprefix("qkv: rank 0: rank 1 failed in step 30: no answer for ")) >= STALL_LIMIT


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.process
def test_a_slow_rank_is_named_once(tmp_path):
    with two_ranks(tmp_path, {"steps": 50}, slow_down) as processes:
        for process in processes:
            process.join(SECONDS)
        assert [process.exitcode for process in processes] == [0, 0]
    (line,) = [line for line in Run(tmp_path).read_metrics() if line.get("event") == "straggler"]
    assert line["rank"] == 1
    assert line["own_seconds"] > 0.2 > line["others_seconds"]
    assert said(tmp_path) == ["", ""]
