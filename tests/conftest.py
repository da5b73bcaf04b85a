"""Shared by all tests."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton is imported: kernels then run on the CPU

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # the workers share the cores among them


@pytest.fixture(autouse=True)
def _fixed_seed():
    torch.manual_seed(0)


def pytest_collection_modifyitems(items):
    missing = pytest.mark.skip(reason="no CUDA device")
    for item in items:
        if "gpu" in item.keywords and not torch.cuda.is_available():
            item.add_marker(missing)
