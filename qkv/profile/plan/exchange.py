"""Bytes that sequence parallelism exchanges, layer by layer.

    a linear kind    the state after its part of the tokens, and how much the part fades what was before:
                     batch * state_heads * features * (value_dim + normalizer) sums in float32
    delta            the same, and a transition matrix of key_dim * key_dim, since a token also removes
    softmax          the keys and values of its part of the tokens
    a convolution    the last width - 1 tokens

Each process receives those of all others (all-gather). In the backward pass it sends the gradients of what it used,
which came from the processes before it, back to them (all-to-all): the last one sends as many bytes as it received.
"""

from dataclasses import dataclass
from math import ceil

from qkv.attention import Scored
from qkv.cost import Shape
from qkv.layers import MultiHead
from qkv.profile.plan.request import TrainingStep

STATE_BYTES = 4
"""Bytes of a value that accumulates: sums, fades and transitions are in float32."""
SUMMARY_CHUNK = 64
"""Fewest tokens per state that a chunked form keeps for its backward pass."""


@dataclass(frozen=True)
class LayerExchange:
    """Bytes that one layer of one process gives to the other parts of its sequences."""

    attention: int
    neighbors: int
    """Bytes of the past of a convolution."""
    scored: bool
    """Whether attention has a score for each pair, so that keys and values are exchanged, not states."""


def heads_of(step: TrainingStep) -> list[MultiHead]:
    """Return the attention layers of the model."""
    return [part for part in step.target.module.modules() if isinstance(part, MultiHead)]


def heads_shape(layer: MultiHead, batch: int, queries: int, keys: int, element_bytes: int) -> Shape:
    """Return the shape of a causal call of the mechanism."""
    return Shape(
        *(batch, layer.heads, queries, keys, layer.key_dim, layer.value_dim, layer.key_heads),
        causal=True,
        decay=layer.position_role == "decay",
        gate_heads=layer.gates.rate_heads if layer.gates else 0,
        channel_gate=layer.gates is not None and layer.gates.per_channel,
        element_bytes=element_bytes,
    )


def layer_exchange(layer: MultiHead, batch: int, tokens: int, element_bytes: int) -> LayerExchange:
    """Return what a layer exchanges for `batch` sequences, of which this process has `tokens` tokens each."""
    scored = isinstance(layer.attention, Scored)
    shape = heads_shape(layer, batch, tokens, tokens, element_bytes)
    found = sum(layer.attention.cost(shape).state.values())
    if not scored:
        rows = batch * layer.attention.state_heads(layer.heads, layer.key_heads, _rate_heads(layer))
        if "beta" in layer.attention.accepts:  # the delta rule: the transition includes what a gate fades
            found += STATE_BYTES * rows * layer.key_dim**2
        elif _rate_heads(layer):
            found += STATE_BYTES * rows * (layer.key_dim if shape.channel_gate else 1)
    return LayerExchange(found, _convolved(layer) * batch * element_bytes, scored)


def gathered_bytes(step: TrainingStep) -> list[int]:
    """Return, for each layer, the bytes that splitting adds to what is held until the backward pass: the last process.

    A layer with scores holds the keys and values of all others, and a mask of pairs: its queries are fewer than its
    keys, for which torch's kernels need one. A linear kind holds the states of all others, and those that the pass over
    its own tokens keeps, one per chunk.
    """
    if step.mesh.sequence == 1:
        return []
    (tokens,) = step.sizes.values()
    held = []
    for layer, one in zip(heads_of(step), exchanges(step), strict=True):
        own = ceil(tokens / SUMMARY_CHUNK) * one.attention
        if one.scored:
            keys, window = tokens * step.mesh.sequence, getattr(layer.attention, "window", None)
            own = step.product_bytes * tokens * (keys if window is None else min(keys, 2 * max(window, 64)))
        held.append((step.mesh.sequence - 1) * one.attention + own)
    return held


def exchanges(step: TrainingStep) -> list[LayerExchange]:
    """Return what each attention layer exchanges in one forward pass."""
    (tokens,) = step.sizes.values()
    return [layer_exchange(x, step.batch_per_device, tokens, step.product_bytes) for x in heads_of(step)]


def _rate_heads(layer: MultiHead) -> int:
    if layer.position_role == "decay":
        return layer.heads
    return layer.gates.rate_heads if layer.gates else 0


def _convolved(layer: MultiHead) -> int:
    """Return the values per sequence that a convolution needs of the part before."""
    if layer.convolution is not None:
        return (layer.convolution.width - 1) * layer.dim
    after = layer.projection_convolution
    channels = layer.heads * layer.key_dim + layer.key_heads * (layer.key_dim + layer.value_dim)
    return 0 if after is None else (after.width - 1) * channels
