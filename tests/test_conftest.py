"""What all tests rely on."""

import runpy
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest


def test_ctrl_c_works_in_processes_of_a_background_job():
    """A shell ignores SIGINT in a background job, and each process that a test starts would inherit that."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        runpy.run_path(str(Path(__file__).with_name("conftest.py")))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(("fixtures", "tries"), [(["browser", "server"], [2]), (["server"], [])])
def test_browser_tests_alone_are_tried_again(fixtures, tries):
    implied_marks = runpy.run_path(str(Path(__file__).with_name("conftest.py")))["_implied_marks"]
    item = SimpleNamespace(fixturenames=fixtures, function=implied_marks, path=Path(__file__), name="test_x")
    marks = [mark for mark in implied_marks(item) if not isinstance(mark, str)]
    assert [mark.kwargs["reruns"] for mark in marks] == tries
