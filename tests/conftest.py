"""Fixtures and marks shared by all tests."""

import fcntl
import os
import shutil
import signal

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton is imported: kernels then run on the CPU

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # so in a background job of a shell, and inherited by every process that a test starts and interrupts
    signal.signal(signal.SIGINT, signal.default_int_handler)

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # the workers share the cores among them


SHAPE_FOLDERS = ("contract", "layers", "positions")


@pytest.fixture(autouse=True)
def _fixed_seed():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def build_once(tmp_path_factory):
    """Return `once(name, build)`: a folder that `build(folder)` fills once for all workers."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent

    def once(name, build):
        folder, ready = root / name, root / f"{name}.ready"
        with (root / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not ready.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                build(folder)
                ready.touch()
        return folder

    return once


@pytest.fixture(scope="session")
def tiny(build_once):
    """Run folder of a small trained pronouncer; copy it before changing it."""
    from tests.pronunciation.tiny import train_tiny  # noqa: PLC0415 - most sessions do not need it

    return build_once("tiny-pronouncer", train_tiny) / "run"


@pytest.fixture(scope="session")
def browser():
    """Chromium, started once per session; required in CI, elsewhere the tests skip without it."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - most sessions do not need it

    chromium = shutil.which("chromium")
    if chromium is None:
        assert os.environ.get("CI") != "true", "CI needs Chromium: apt-get install chromium"
        pytest.skip("chromium is not installed: apt-get install chromium")
    with sync_playwright() as play:  # one per process: playwright refuses a second
        found = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items):
    missing = pytest.mark.skip(reason="no CUDA device")
    for item in items:
        for mark in _implied_marks(item):
            item.add_marker(mark)
        if "gpu" in item.keywords and not torch.cuda.is_available():
            item.add_marker(missing)


def _implied_marks(item):
    """Yield the marks that follow from what a test uses, so that none is forgotten."""
    if "browser" in item.fixturenames:
        yield "browser"
        yield pytest.mark.flaky(reruns=2)  # see CONTRIBUTING.md
    if "subprocess" in item.function.__code__.co_names:
        yield "process"
    if "triton" in item.path.parent.parts:
        yield "triton"
    if item.path.parent.name in SHAPE_FOLDERS and not any(word in item.name for word in ("bad_input", "compiles")):
        yield "shapes"  # bad input is left to our own errors, and Dynamo cannot trace the checks
