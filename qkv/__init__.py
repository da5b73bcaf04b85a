"""qkv: attention, from exact softmax to linear time.

    out = qkv.attend(q, k, v, kind="taylor", causal=True)

Names are loaded when they are first used, so that `qkv --help` does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qkv import attention as attention
    from qkv import compare as compare
    from qkv import cost as cost
    from qkv import data as data
    from qkv import decode as decode
    from qkv import draw as draw
    from qkv import errors as errors
    from qkv import explain as explain
    from qkv import inference as inference
    from qkv import interop as interop
    from qkv import layers as layers
    from qkv import metrics as metrics
    from qkv import models as models
    from qkv import positions as positions
    from qkv import problems as problems
    from qkv import profile as profile
    from qkv import pronunciation as pronunciation
    from qkv import runs as runs
    from qkv import storage as storage
    from qkv import tasks as tasks
    from qkv import train as train
    from qkv import web as web
    from qkv.attention import attend as attend
    from qkv.attention import weights as weights
    from qkv.pronunciation import pronounce as pronounce
    from qkv.runs import detect as detect
    from qkv.runs import embed as embed
    from qkv.web import look as look

__version__ = "0.1.0"

_HOMES = {
    "attend": "qkv.attention",
    "detect": "qkv.runs",
    "embed": "qkv.runs",
    "look": "qkv.web",
    "pronounce": "qkv.pronunciation",
    "weights": "qkv.attention",
}
__all__ = [
    "attend",
    "attention",
    "compare",
    "cost",
    "data",
    "decode",
    "detect",
    "draw",
    "embed",
    "errors",
    "explain",
    "inference",
    "interop",
    "layers",
    "look",
    "metrics",
    "models",
    "positions",
    "problems",
    "profile",
    "pronounce",
    "pronunciation",
    "runs",
    "storage",
    "tasks",
    "train",
    "web",
    "weights",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in __all__:
        return import_module(f"qkv.{name}")
    raise AttributeError(f"module 'qkv' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
