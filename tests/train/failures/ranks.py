"""Two processes that train together, started as torchrun does, of which one fails."""

import multiprocessing
import os
import re
import resource
import signal
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist

from qkv.cli.shared.errors import describe_error
from qkv.train import Compute, Loop, Run
from tests.train.job import settings_of, task_of

FAILING_STEP, STALL_LIMIT = 30, 6
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.train.job", "torch._dynamo"])


def raise_error():
    raise ValueError("row 7 has no target")


def run_out_of_memory():
    resource.setrlimit(resource.RLIMIT_AS, (2**36, 2**36))
    torch.zeros(2**36)


FAILURES = {
    "raise": raise_error,
    "hang": lambda: time.sleep(600),
    "block": lambda: re.match(r"(a+)+$", 60 * "a" + "b"),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "memory": run_out_of_memory,
}


def fail_in(rank, how, step=FAILING_STEP):
    """A change of the loss: it fails in this step of this rank."""

    def change(task):
        calls = 0

        def loss(model, tensors):
            nonlocal calls
            calls += 1
            if dist.get_rank() == rank and calls == step:
                FAILURES[how]()
            return task.loss(model, tensors)

        return replace(task, loss=loss)

    return change


def slow_down(rank, _):
    """A change of the loss: on this rank it takes longer."""

    def change(task):
        def loss(model, tensors):
            time.sleep(0.2 if dist.get_rank() == rank else 0)
            return task.loss(model, tensors)

        return replace(task, loss=loss)

    return change


def leave(*_):
    """No change of the loss."""
    return lambda task: task


def work(folder, rank, port, values, change, how):
    """Train; an error becomes a sentence and an exit code, as the command makes them."""
    torch.set_num_threads(1)
    group = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    os.environ.update(**group, TORCHELASTIC_USE_AGENT_STORE="True")
    limit = STALL_LIMIT if how in ("hang", "block") else 40  # a busy machine may stand still for seconds
    settings = settings_of(**{"validate_every": 1000, **values})
    with (folder / f"stderr-{rank}").open("w") as errors, patch.object(sys, "stderr", errors):
        loop = Loop(change(1, how)(task_of(settings)), settings, Run(folder), Compute(stall_limit=limit))
        loop.resume()
        try:
            loop.train()
        except Exception as error:  # noqa: BLE001 - as the command does
            sentence, code = describe_error(error)
            errors.write(f"qkv: {sentence}\n")
            sys.exit(code)


@contextmanager
def two_ranks(folder, values, change=leave, how=""):
    """The processes; the store is that of this process, as with torchrun."""
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    started = [_context.Process(target=work, args=(folder, rank, store.port, values, change, how)) for rank in (0, 1)]
    for process in started:
        process.start()
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.join()


def said(folder: Path):
    return [(folder / f"stderr-{rank}").read_text() for rank in (0, 1)]
