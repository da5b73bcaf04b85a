"""The command line, as a user runs it."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def qkv(*arguments, code=0):
    """stdout of `qkv arguments`, which must exit with `code`, without a traceback and quietly if all is well."""
    done = subprocess.run(
        [sys.executable, "-c", "from qkv.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if code in (0, 3) else done.stderr
