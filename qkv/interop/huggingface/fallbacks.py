"""Faster recurrent layers in models of `transformers`, where the package with their kernels is not installed.

    qkv.interop.replace_fallbacks(model)

`transformers` computes gated delta rules, KDA and Mamba-2 by kernels for GPUs (packages fla and mamba-ssm), and where
these are missing, by fallbacks in torch. Our kinds compute the same, faster and in less memory.
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from torch import nn

from qkv.interop.huggingface.recurrent import replace_delta_rule, replace_lightning, replace_mamba2_scan

Replace = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Takes their function and returns ours."""

FUNCTIONS: dict[str, tuple[str, Replace]] = {
    "torch_chunk_gated_delta_rule": ("fla", replace_delta_rule),
    "chunk_kimi_delta_attention": ("fla", replace_delta_rule),
    "mamba2_chunk_scan": ("mamba_ssm", replace_mamba2_scan),
}
"""Function that a layer calls -> package with its kernel, and ours. Those for a single token stay: they are fast."""
LAYERS: dict[str, Replace] = {"MiniMaxLightningAttention": replace_lightning}
"""Layer without a function of its own -> our forward."""

_originals: dict[tuple[ModuleType | type, str], Any] = {}
"""What was replaced, by where it was and its name."""


def replace_fallbacks(model: nn.Module) -> list[str]:
    """Compute the recurrent layers of this model by qkv, and return the names of their classes.

    It replaces functions of the file that defines the layers, so it applies to all models of this architecture in this
    process, until `restore_fallbacks`. A second call changes nothing. Layers whose kernels are installed keep them.
    """
    found = list(_places(model))
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no layer that qkv can compute: no gated delta rule, KDA, Mamba-2 or "
            "lightning attention of transformers; register_attention() is for models with softmax attention"
        )
    missing = [place for place in found if place[3] is None or find_spec(place[3]) is None]
    if not missing:
        raise ValueError(
            f"{found[0][0]} already runs the kernels of the package {found[0][3]}, so there is no fallback to replace"
        )
    for _, owner, name, _, replace in missing:
        if (owner, name) not in _originals:
            _originals[owner, name] = getattr(owner, name)
            setattr(owner, name, replace(_originals[owner, name]))
    return sorted({layer for layer, *_ in missing})


def restore_fallbacks(model: nn.Module) -> None:
    """Undo `replace_fallbacks` for all models of this architecture."""
    for _, owner, name, *_ in _places(model):
        if (owner, name) in _originals:
            setattr(owner, name, _originals.pop((owner, name)))


Place = tuple[str, ModuleType | type, str, str | None, Replace]
"""Name of the layer's class, where its function is, the function's name, package of its kernel, ours."""


def _places(model: nn.Module) -> Iterator[Place]:
    """Find what the layers of this model call and we can compute."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {type(model).__name__}")
    for layer in dict.fromkeys(type(module) for module in model.modules()):
        if not layer.__module__.startswith("transformers."):
            continue
        if layer.__name__ in LAYERS:
            yield layer.__name__, layer, "forward", None, LAYERS[layer.__name__]
        called = inspect.unwrap(layer.forward).__code__.co_names
        for name in called:
            if name in FUNCTIONS:
                yield layer.__name__, sys.modules[layer.__module__], name, *FUNCTIONS[name]
