"""The speed of this machine in each kind of operation: measured once, then read from the cache folder."""

import hashlib
import json
import platform
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from qkv.profile.timing.calibrate import calibrate
from qkv.profile.timing.op_terms import MEMORY_BOUND, TERMS
from qkv.profile.timing.rates import Rates
from qkv.storage import cache_dir, write_atomic

FORMAT = 3


def machine_rates(*, remeasure: bool = False) -> Rates:
    """Return the rates of this machine; they are measured once per torch version and thread count."""
    path = _rates_path()
    if path.exists() and not remeasure:
        with suppress(ValueError, KeyError, TypeError, AttributeError):  # damaged or of another format: remeasure
            return _parse(json.loads(path.read_text()))
    found = calibrate()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps({"format": FORMAT, **asdict(found)}).encode())
    return found


def calibration_age() -> float | None:
    """Return how many seconds ago the speed of this machine was measured; None if it never was."""
    with suppress(OSError):
        return max(time.time() - _rates_path().stat().st_mtime, 0.0)
    return None


def _rates_path() -> Path:
    return cache_dir() / f"rates-{_machine_hash()}.json"


def _machine_hash() -> str:
    """Return a hash of the processor, the torch version and the number of threads."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    processor = next((line for line in lines if line.startswith("model name")), platform.processor())
    description = f"{processor} {platform.node()} {torch.__version__} {torch.get_num_threads()}"
    return hashlib.sha256(description.encode()).hexdigest()[:12]


def _parse(record: dict[str, Any]) -> Rates:
    memory_bound = {
        category: [(float(size), float(seconds)) for size, seconds in points]
        for category, points in record["memory_bound"].items()
    }
    coefficients = {
        category: {term: float(seconds) for term, seconds in terms.items()}
        for category, terms in record["coefficients"].items()
    }
    terms = {category: tuple(names) for category, names in coefficients.items()}
    if set(memory_bound) != set(MEMORY_BOUND) or terms != TERMS:
        raise KeyError("the cached rates have other categories")
    call, binding, view, start = (float(record[name]) for name in ("call", "binding", "view", "start"))
    return Rates(call, binding, view, start, coefficients, memory_bound)
