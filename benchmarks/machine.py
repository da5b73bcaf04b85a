"""Machine, versions and date of a result."""

import os
import platform
from datetime import UTC, datetime
from pathlib import Path

import torch

import qkv


def about() -> dict[str, object]:
    """The record that stands at the top of every result file."""
    return {
        "format": 1,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": {"cpu": _cpu(), "cores": os.cpu_count(), "threads": torch.get_num_threads(), "gpu": _gpu()},
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "qkv": qkv.__version__},
    }


def _cpu() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _gpu() -> str | None:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else None
