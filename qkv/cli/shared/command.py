"""The command as the user typed it, for messages that suggest the next command."""

import shlex
import shutil
import sys
from pathlib import Path


def command_name() -> str:
    """Return how to start this program again: `qkv` if that is on the path, else the path of the running executable.

    So `.venv/bin/qkv train` prints `.venv/bin/qkv serve RUN`, which works as printed.
    After `python -m qkv` the result is `python -m qkv`.
    """
    program = Path(sys.argv[0])
    if program.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m qkv"
    if program.name != "qkv":  # such as python -c
        return "qkv"
    found = shutil.which("qkv")
    is_on_path = found is not None and Path(found).resolve() == program.resolve()
    return "qkv" if is_on_path else shlex.quote(str(program))
