"""`qkv` commands in processes that start at once, since they are forked from one that has imported torch."""

import multiprocessing
import os
import sys
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["qkv.cli", "qkv.runs", "qkv.web", "qkv.cli.shared.progress", "torch._dynamo"])


def start(arguments: list[str], log: Path, moment: float = 0.0) -> ForkServerProcess:
    """Start a command whose output goes to this file; it begins at this moment of the clock (default: at once)."""
    process = _context.Process(target=_run, args=(arguments, str(log), moment))
    process.start()
    return process


def _run(arguments: list[str], log: str, moment: float) -> None:
    import torch  # noqa: PLC0415

    from qkv.cli import main  # noqa: PLC0415

    torch.set_num_threads(1)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.argv = ["qkv", *arguments]
    time.sleep(max(moment - time.time(), 0))
    main()
