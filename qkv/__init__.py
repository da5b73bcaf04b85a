"""qkv: attention, from exact softmax to linear time.

    out = qkv.attend(q, k, v, kind="taylor", causal=True)

Names are loaded when they are first used, so that `qkv --help` does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qkv.attention import attend as attend
    from qkv.attention import weights as weights
    from qkv.pronunciation import pronounce as pronounce
    from qkv.runs import embed as embed
    from qkv.web import look as look

__version__ = "0.1.0"

_HOMES = {
    "attend": "qkv.attention",
    "embed": "qkv.runs",
    "look": "qkv.web",
    "pronounce": "qkv.pronunciation",
    "weights": "qkv.attention",
}
_PACKAGES = (
    "attention",
    "cost",
    "data",
    "compare",
    "decode",
    "draw",
    "explain",
    "inference",
    "interop",
    "layers",
    "metrics",
    "models",
    "positions",
    "problems",
    "profile",
    "pronunciation",
    "runs",
    "tasks",
    "train",
    "web",
)
__all__ = ["attend", "embed", "look", "pronounce", "weights"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _PACKAGES:
        return import_module(f"qkv.{name}")
    raise AttributeError(f"module 'qkv' has no attribute {name!r}")
