"""Memory does not grow with the number of steps."""

import os
from pathlib import Path

import pytest
import torch

from qkv.train import Loop, Run
from tests.train.job import settings_of, task_of
from tests.train.processes import finish


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(folder, values, _):
    """Train, and write down the bytes in memory after 200 and after 2,000 steps."""
    torch.set_num_threads(1)
    settings, sizes = settings_of(**values), {}

    def report(line):
        if "loss" in line and line["step"] in (200, 2000):
            sizes[line["step"]] = resident()

    Path(folder).mkdir()
    Loop(task_of(settings), settings, Run(Path(folder)), report=report).train()
    (Path(folder) / "sizes").write_text(f"{sizes[200]} {sizes[2000]}")


@pytest.mark.slow
@pytest.mark.alone
def test_2000_steps_take_no_more_memory_than_200(tmp_path):
    finish(tmp_path / "run", {"steps": 2000, "validate_every": 100}, target=measure)
    early, late = map(int, (tmp_path / "run" / "sizes").read_text().split())
    assert early > 50 * 2**20
    assert late <= early + max(0.02 * early, 16 * 2**20)
