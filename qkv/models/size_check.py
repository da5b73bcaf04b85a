"""Check the size of a model before it is built: against the tensors of a file, or against the memory of this machine.

The model is built on the meta device, where tensors have shapes and no memory.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import torch
from torch import nn

from qkv.models.attention_pattern import pattern_period
from qkv.storage.safetensors_header import TensorHeader

BYTES_PER_PARAMETER = 4
"""Models are built in float32."""


def find_mismatch(
    make: Callable[[Any], nn.Module],
    config: Any,
    rename: Callable[[Any, Any], Any],
    tensors: Mapping[str, TensorHeader],
) -> str:
    """Return the first difference between the model of a configuration and the tensors of a file; empty: none.

    `rename(tensors, names)` maps old tensor names to those of the model.
    """
    for name in layer_settings(config):
        if getattr(config, name) > len(tensors):  # a layer has at least one tensor
            return f"{name}={getattr(config, name):,}, but the file has {len(tensors):,} tensors"
    try:
        expected = build_on_meta(make, config).state_dict()
    except (RuntimeError, OverflowError) as error:
        return f"a model of this configuration is too large ({str(error).splitlines()[0]})"
    found = rename(tensors, expected)
    for name, x in expected.items():
        if name not in found:
            return f"there is no tensor {name}"
        if found[name].shape != tuple(x.shape):
            return f"{name} has shape {found[name].shape}, not {tuple(x.shape)}"
        if found[name].is_float != x.is_floating_point():
            return f"{name} has type {found[name].dtype}, not {x.dtype}"
    extra = next((name for name in found if name not in expected), "")
    return f"the model has no tensor {extra[:80]}" if extra else ""


def require_memory(make: Callable[[Any], nn.Module], config: Any) -> None:
    """Raise ValueError if the parameters of a model would not fit into the memory of this machine."""
    available = _memory_bytes()
    try:
        count = count_parameters(make, config)
    except (RuntimeError, OverflowError) as error:  # sizes that no tensor can have
        raise ValueError(f"a model of these sizes is too large: {str(error).splitlines()[0]}") from None
    if count * BYTES_PER_PARAMETER > available:
        needed = count * BYTES_PER_PARAMETER / 1e9
        raise ValueError(
            f"a model of these sizes has {count:,} parameters, {needed:,.0f} GB, "
            f"but this machine has {available / 1e9:,.0f} GB of memory"
        )


def count_parameters(make: Callable[[Any], nn.Module], config: Any) -> int:
    """Return the number of parameters without building all layers: after some layers, sizes repeat."""
    attention = getattr(config, "attention", None)
    period = pattern_period(attention) if isinstance(attention, str) else 1
    layers = {name: getattr(config, name) for name in layer_settings(config)}
    deep = {name: 2 * period + count % period for name, count in layers.items() if count >= 3 * period}
    shallow = replace(config, **deep) if deep else config
    total = of_two_periods = _parameters(make, shallow)
    for name, count in deep.items():
        one_period = of_two_periods - _parameters(make, replace(shallow, **{name: count - period}))
        total += (layers[name] - count) // period * one_period
    return total


def layer_settings(config: Any) -> list[str]:
    """Return the names of the settings that are numbers of layers."""
    names = [field.name for field in fields(config)]
    return [name for name in names if name == "layers" or name.endswith("_layers")]


def build_on_meta(make: Callable[[Any], nn.Module], config: Any) -> nn.Module:
    """Return the model with shapes and without memory; the state of torch's random generator stays."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        return make(config)


def _parameters(make: Callable[[Any], nn.Module], config: Any) -> int:
    return sum(parameter.numel() for parameter in build_on_meta(make, config).parameters())


def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
