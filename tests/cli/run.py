"""The command line, as a user runs it."""

import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from unittest.mock import patch

from qkv.cli import main

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


def inside(*arguments, code=0):
    """The same without a process of its own, which takes seconds to import torch; where nothing is changed for good."""
    out, err = StringIO(), StringIO()
    with patch.object(sys, "argv", ["qkv", *arguments]), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
            found = 0
        except SystemExit as left:
            found = left.code or 0
    assert found == code, err.getvalue()
    return out.getvalue() if code in (0, 3) else err.getvalue()
