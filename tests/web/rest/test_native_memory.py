"""What native libraries keep for each number of rows; in a process of its own, since they read the bounds only once."""

import os
import subprocess
import sys

import pytest

from tests.cli.run import ROOT

STEPS = """
import ctypes, sys
from pathlib import Path
import torch
from qkv.web.rest import ServedRun

class Allocated(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

def in_use():
    return libc.mallinfo2().uordblks / 2**20

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Allocated
torch.set_num_threads(1)
model = ServedRun.load(Path(sys.argv[1])).model
found = []
with torch.inference_mode():
    for rows in range(1, 400):
        state = model.start(torch.zeros(rows, 0, dtype=torch.int64), None)
        model.step(torch.zeros(rows, dtype=torch.int64), state)
        if rows in (100, 399):
            found.append(in_use())
print(found[1] - found[0])
"""


def growth(run, **environment):
    """MiB in use after steps of 399 different numbers of rows, less those after 100."""
    command = [sys.executable, "-c", STEPS, str(run)]
    own = {name: value for name, value in os.environ.items() if "CACHE_CAPACITY" not in name}
    found = subprocess.run(command, cwd=ROOT, env={**own, **environment}, capture_output=True, text=True, check=True)
    return float(found.stdout)


@pytest.mark.process
def test_steps_of_ever_other_numbers_of_rows_keep_no_memory(long_run):
    assert growth(long_run) < 3
    many = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "4000", "LRU_CACHE_CAPACITY": "4000"}
    assert growth(long_run, **many) > 6  # what the user has set counts
