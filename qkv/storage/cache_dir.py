"""The folder for what can be downloaded or measured again."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """Return `QKV_CACHE`, or else qkv below `XDG_CACHE_HOME` or ~/.cache."""
    chosen = os.environ.get("QKV_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "qkv"
