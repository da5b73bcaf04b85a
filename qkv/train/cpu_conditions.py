"""What the last bits of a result on a CPU depend on besides the program: the processor and the kernels in use."""

import os
import platform
from hashlib import sha256
from pathlib import Path

import torch

VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "DNNL_MAX_CPU_ISA",
    "ONEDNN_MAX_CPU_ISA",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "OPENBLAS_CORETYPE",
)
"""Environment variables that choose other kernels: torch's own, oneDNN's, those of MKL and OpenBLAS."""


def cpu_conditions() -> dict[str, str]:
    """Return processor, instruction set in use, variables that restrict it, torch's build and precision settings."""
    return {
        "cpu": _processor(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "environment": " ".join(f"{name}={os.environ[name]}" for name in VARIABLES if os.environ.get(name)),
        "build": sha256(torch.__config__.show().encode()).hexdigest()[:12],
        "matmul_precision": torch.get_float32_matmul_precision(),
        "onednn": str(torch.backends.mkldnn.enabled),
    }


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
