"""What all tests rely on."""

import runpy
import signal
from pathlib import Path


def test_ctrl_c_works_in_processes_of_a_background_job():
    """A shell ignores SIGINT in a background job, and each process that a test starts would inherit that."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        runpy.run_path(str(Path(__file__).with_name("conftest.py")))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
