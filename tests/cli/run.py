"""Run the command line as a user does, in this process or in a new one.

A new process imports torch, which takes seconds. It is needed only where the test is about the process: signals, a
closed pipe, a terminal, arguments that are not UTF-8, imports. Mark such a test `process`.
"""

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import torch

from qkv.attention import kinds
from qkv.cli import main
from qkv.models import families
from qkv.positions import schemes
from qkv.tasks import tasks

ROOT = Path(__file__).parent.parent.parent
COMMAND = (sys.executable, "-c", "from qkv.cli import main; main()")


@dataclass(frozen=True)
class Finished:
    """What a command left behind."""

    code: int
    stdout: str
    stderr: str


def qkv(*arguments: str, code: int = 0, stdin: bytes = b"", columns: int = 160) -> str:
    """Run `qkv arguments` in this process; return its stdout, or its stderr if it fails. It must exit with `code`."""
    return _checked(run(*arguments, stdin=stdin, columns=columns), code)


def qkv_process(*arguments: str | bytes, code: int = 0, stdin: bytes = b"") -> str:
    """Run `qkv arguments` in a new process, otherwise as `qkv`."""
    return _checked(run_process(*arguments, stdin=stdin), code)


def run(*arguments: str, stdin: bytes = b"", columns: int = 160) -> Finished:
    """Run `qkv arguments` in this process, with pipes for stdin, stdout and stderr, and undo all that it changed."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", errors) for errors in ("strict", "backslashreplace"))
    streams = {"stdin": io.TextIOWrapper(io.BytesIO(stdin), "utf-8", "surrogateescape"), "stdout": out, "stderr": err}
    code = 0
    program = patch.object(sys.modules["__main__"], "__package__", None)  # or click takes pytest for the program
    with _restored(arguments, columns), program, patch.multiple(sys, argv=["qkv", *arguments], **streams):
        try:
            main()
        except SystemExit as left:
            code = left.code or 0
    return Finished(code, _written(out), _written(err))


def run_process(*arguments: str | bytes, stdin: bytes = b"") -> Finished:
    """Run `qkv arguments` in a new process."""
    done = subprocess.run([*COMMAND, *arguments], input=stdin, capture_output=True, cwd=ROOT, check=False)
    return Finished(done.returncode, done.stdout.decode(), done.stderr.decode())


def _checked(done: Finished, code: int) -> str:
    assert done.code == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if code in (0, 3) else done.stderr


def _written(stream: io.TextIOWrapper) -> str:
    stream.flush()
    return stream.buffer.getvalue().decode()


@contextmanager
def _restored(arguments: tuple[str, ...], columns: int) -> Iterator[None]:
    """Undo what a command changes: environment, folder, import path, registries, torch's generator and threads."""
    folder, threads, generator = Path.cwd(), torch.get_num_threads(), torch.get_rng_state()
    registries = [kinds._classes, schemes._classes, tasks._classes, families._classes]
    plugins = {name for option, name in pairwise(arguments) if option == "--plugin"}
    plugins -= sys.modules.keys()
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, COLUMNS=str(columns)))
        stack.enter_context(patch.object(sys, "path", list(sys.path)))
        for registry in registries:
            stack.enter_context(patch.dict(registry))
        try:
            yield
        finally:
            for name in plugins:
                sys.modules.pop(name, None)
            os.chdir(folder)
            torch.set_num_threads(threads)
            torch.set_rng_state(generator)
