"""The small job's loop in this process, started, resumed and stopped."""

import signal

import pytest
import torch

from qkv.train import Compute, Interrupted, Loop, Run
from tests.train.job import Trouble, settings_of, task_of


def loop_in(folder, *, trouble=Trouble(), task=None, machine=Compute(), report=None, **values):  # noqa: B008 - frozen
    folder.mkdir(exist_ok=True)
    settings = settings_of(**values)
    more = {} if report is None else {"report": report}
    return Loop(task or task_of(settings, trouble), settings, Run(folder), machine, **more)


def resumed(folder, **options):
    loop = loop_in(folder, **options)
    loop.resume()
    return loop


def stop_at(step, loop):
    """Ask the loop to stop once this step is done, as a signal would."""

    def report(record):
        loop.interrupt.received = signal.SIGTERM * (record["step"] >= step and "loss" in record)

    loop.report = report
    with pytest.raises(Interrupted):
        loop.train()


def equal(left, right):
    """Whether two lists of tensors are the same to the last bit."""
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))
