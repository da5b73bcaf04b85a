"""Jobs in processes of their own, forked from one that has imported torch already."""

import multiprocessing
import time
from contextlib import contextmanager
from dataclasses import asdict

from tests.train.job import Trouble, work

_context = multiprocessing.get_context("forkserver")
# an optimizer imports torch._dynamo, which takes longer than the job
_context.set_forkserver_preload(["tests.train.job", "torch._dynamo"])


@contextmanager
def job(folder, values, trouble=Trouble(), target=work):  # noqa: B008 - frozen
    """The job at work; it does not outlive the test."""
    process = _context.Process(target=target, args=(str(folder), values, asdict(trouble)))
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


def finish(folder, values, trouble=Trouble(), target=work):  # noqa: B008 - frozen
    """Let the job come to its end, which must be a good one."""
    with job(folder, values, trouble, target) as process:
        process.join(60)
        assert process.exitcode == 0


def wait_for(condition, process, seconds=60.0):
    """Until the condition holds or the process has ended."""
    end = time.monotonic() + seconds
    while not condition() and process.exitcode is None:
        assert time.monotonic() < end
        time.sleep(0.001)
