"""One layer in the setting `attention`: a kind, and the parts that its multi-head layer gets after +.

    delta+forget+write                                        Gated DeltaNet's gates
    linear+channel(rank=8)+output                             gated linear attention
    delta+forget+write(largest=2)+output+convolution(width=4)

forget and channel give rates of forgetting, write the strength of the delta rule, and output a factor of each head's
output. convolution is a short convolution after the projections.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn

from qkv.attention.attend import read_call
from qkv.errors import unknown_name_error
from qkv.layers.convolution import ProjectionConvolution
from qkv.layers.gates import ChannelGate, ForgetGate, Gates, OutputGate, WriteGate
from qkv.records import split_outside_brackets


class _Part(NamedTuple):
    slot: str
    """What it is in the layer; a layer has one part in each."""
    make: Callable[..., nn.Module]
    sizes: tuple[str, ...]
    """Sizes of the layer that its constructor takes first."""
    needs: str = ""
    """What the kind must accept; empty: nothing. What it accepts changes a state of past keys, so it is causal."""


PARTS = {
    "forget": _Part("forget", ForgetGate, ("dim", "heads"), ForgetGate.gives),
    "channel": _Part("forget", ChannelGate, ("dim", "heads", "key_dim"), ChannelGate.gives),
    "write": _Part("write", WriteGate, ("dim", "heads"), WriteGate.gives),
    "output": _Part("output", OutputGate, ("dim", "heads", "value_dim")),
    "convolution": _Part("convolution", ProjectionConvolution, ("channels",)),
}
"""Name after + -> part."""


@dataclass(frozen=True)
class LayerSpec:
    """The attention kind of a layer, with its options as text, and its parts by name with their options."""

    kind: str
    parts: dict[str, dict[str, Any]]

    @property
    def causal_parts(self) -> list[str]:
        """Names of the parts that make the layer causal."""
        return [name for name in self.parts if PARTS[name].needs]

    def build(self, sizes: Mapping[str, int]) -> tuple[Gates | None, ProjectionConvolution | None]:
        """Build the parts for a layer of these sizes: dim, heads, key_dim, value_dim and channels."""
        built: dict[str, Any] = {}
        for name, options in self.parts.items():
            part = PARTS[name]
            built[part.slot] = part.make(*(sizes[size] for size in part.sizes), **options)
        convolution = built.pop("convolution", None)
        return Gates(**built) if built else None, convolution


def part_options(name: str) -> list[str]:
    """Return the names of the options of a part."""
    parameters = inspect.signature(PARTS[name].make).parameters.values()
    return [x.name for x in parameters if x.default is not x.empty]


def read_layer(text: str) -> LayerSpec:
    """Split a text such as "delta+forget+write(largest=2)" into the kind and its parts."""
    kind, *others = split_outside_brackets(text, "+")
    parts: dict[str, dict[str, Any]] = {}
    slots: dict[str, str] = {}
    for other in others:
        call = read_call(other)
        if call is None:
            raise ValueError(
                f"attention={text!r} must be a kind, then parts with their options, such as "
                f"delta+forget+write(largest=2), got {other!r} after +"
            )
        name, options = call
        if name not in PARTS:
            raise unknown_name_error(f"part of attention={text!r} after +:", name, PARTS)
        slot = PARTS[name].slot
        if slot in slots:
            twice = f"{name} twice" if slots[slot] == name else f"both {slots[slot]} and {name}"
            raise ValueError(f"attention={text!r} has {twice}, but a layer has one of them")
        for option in options:
            if option not in part_options(name):
                raise unknown_name_error(f"option of {name} in attention={text!r}:", option, part_options(name))
        slots[slot] = name
        parts[name] = options
    return LayerSpec(kind, parts)
