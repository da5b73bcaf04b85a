"""This machine's rates: measured once, then kept in the cache folder."""

import hashlib
import json
import os
import platform
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from qkv.profile.timing.calibrate import calibrate
from qkv.profile.timing.op_terms import MOVING, TERMS
from qkv.profile.timing.rates import Rates

FORMAT = 2


def rates(*, again: bool = False) -> Rates:
    """Those of this machine, from the cache folder if they were measured before with this torch and thread count."""
    path = _folder() / f"rates-{_machine()}.json"
    if path.exists() and not again:
        with suppress(ValueError, KeyError, TypeError, AttributeError):  # damaged or of another version: measured again
            return _read(json.loads(path.read_text()))
    found = calibrate()
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(f".{os.getpid()}")
    beside.write_text(json.dumps({"format": FORMAT, **asdict(found)}))
    beside.replace(path)
    return found


def _folder() -> Path:
    """`QKV_CACHE`, or the usual place."""
    usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qkv"
    return Path(os.environ.get("QKV_CACHE") or usual)


def _machine() -> str:
    """A word for this processor, torch and number of threads."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    processor = next((line for line in lines if line.startswith("model name")), platform.processor())
    told = f"{processor} {platform.node()} {torch.__version__} {torch.get_num_threads()}"
    return hashlib.sha256(told.encode()).hexdigest()[:12]


def _read(record: dict[str, Any]) -> Rates:
    moving = {sort: [(float(a), float(b)) for a, b in points] for sort, points in record["moving"].items()}
    terms = {sort: {term: float(each) for term, each in rates.items()} for sort, rates in record["terms"].items()}
    if set(moving) != set(MOVING) or {sort: tuple(each) for sort, each in terms.items()} != TERMS:
        raise KeyError("rates of other sorts")
    call, binding, view, start = (float(record[name]) for name in ("call", "binding", "view", "start"))
    return Rates(call, binding, view, start, terms, moving)
