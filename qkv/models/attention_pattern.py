"""The setting `attention` of a Transformer: one kind for all layers, or a pattern that repeats over them.

    taylor(order=4)              the same kind in every layer
    linear,linear,linear,softmax     layers 1 to 4, then again; its length must divide the number of layers
    3*linear,softmax             the same, shorter
    softmax/3*linear,softmax     encoder/decoder, in a model that has both
    3*delta+forget+write,softmax     parts after + belong to their kind: see `qkv.layers.layer_spec`

Brackets around a pattern are optional: `[linear,softmax]` is one item of a list, as in `qkv compare`.
"""

import math
import re

from qkv.models.validation import MAX_LAYERS
from qkv.records import split_outside_brackets

_REPEATED = re.compile(r"(\d{1,9})\s*\*\s*(.+)", re.DOTALL)


def kinds_of_layers(text: str, layers: int, setting: str = "layers") -> list[str]:
    """Return the attention kind of every layer; errors call the number of layers `setting`."""
    pattern = _read_pattern(text)
    if layers % len(pattern):
        raise ValueError(
            f"attention={text!r} is a pattern of {len(pattern)} layers, which must divide {setting}={layers}"
        )
    return pattern * (layers // len(pattern))


def split_encoder_decoder(text: str) -> tuple[str, str]:
    """Return the patterns of the encoder and of the decoder: "softmax/linear" names both, "softmax" is for both."""
    stacks = split_outside_brackets(text, "/")
    if len(stacks) > 2:
        raise ValueError(f"attention={text!r} must be one pattern, or two as ENCODER/DECODER, got {len(stacks)}")
    return stacks[0], stacks[-1]


def distinct_kinds(text: str) -> list[str]:
    """Return each kind that a setting names, once, in order."""
    stacks = dict.fromkeys(split_encoder_decoder(text))
    return list(dict.fromkeys(kind for stack in stacks for kind in _read_pattern(stack)))


def pattern_period(text: str) -> int:
    """Return the number of layers after which the kinds repeat: 1 for a single kind."""
    return math.lcm(*(len(_read_pattern(stack)) for stack in split_encoder_decoder(text)))


def is_pattern(text: str) -> bool:
    """Return whether a setting is more than one kind with options."""
    return len(split_outside_brackets(text, "/")) > 1 or _read_pattern(text) != [text.strip()]


def _read_pattern(text: str) -> list[str]:
    """Return the kinds of one period."""
    if len(split_outside_brackets(text, "/")) > 1:
        raise ValueError(
            f"attention={text!r} has '/', which separates encoder and decoder, but this is one stack of layers"
        )
    stripped = text.strip()
    inner = stripped[1:-1] if stripped.startswith("[") and stripped.endswith("]") else stripped
    pattern: list[str] = []
    for item in split_outside_brackets(inner, ","):
        repeated = _REPEATED.fullmatch(item)
        count, kind = (int(repeated[1]), repeated[2]) if repeated else (1, item)
        if not kind:
            raise ValueError(
                f"attention={text!r} must be a kind, or kinds with commas between them, such as linear,softmax"
            )
        if not 1 <= count <= MAX_LAYERS:
            raise ValueError(f"attention={text!r} must repeat a kind 1 to {MAX_LAYERS:,} times, got {count}")
        pattern += [kind] * count
    return pattern
