"""Multiplications of the feature-map kinds, by backend."""

from typing import TYPE_CHECKING

from qkv.attention.internal.chunk_decay import block_pairs
from qkv.attention.internal.layout import state_rows
from qkv.attention.triton import dispatch
from qkv.cost import Shape

if TYPE_CHECKING:
    from qkv.attention.feature_map import FeatureMap
    from qkv.attention.internal.key_sums import KeySums


def needed(mechanism: "FeatureMap", shape: Shape) -> dict[str, int]:
    """Return the multiplications that update the state for each key and read it for each query."""
    features = mechanism.feature_dim(shape.key_dim)
    return {
        "write": state_rows(shape) * shape.keys * features * shape.value_dim,
        "read": shape.rows * shape.queries * features * (shape.value_dim + mechanism.normalizes),
    }


def executed(mechanism: "FeatureMap", shape: Shape, backend: str) -> dict[str, int]:
    """Return the multiplications that this backend runs."""
    if backend == "triton":
        return dispatch.multiplications(mechanism, shape)
    scored = inside = shape.queries * shape.keys
    if backend == "chunked":
        chunk = chunk_size(mechanism, shape.key_dim, channel_gate=shape.channel_gate)
        # not divmod, which torch.compile cannot trace for a symbolic length
        whole, rest = shape.queries // chunk, shape.queries % chunk
        scored = inside = (whole * chunk**2 + rest**2) if shape.causal else 0
        if shape.channel_gate:
            scored = whole * block_pairs(chunk) + block_pairs(rest)
    scores = {
        "scores": shape.rows * scored * shape.key_dim,
        "values": shape.rows * inside * shape.value_dim,
    }
    return scores if backend == "reference" else {**scores, **needed(mechanism, shape)}


def cheapest_torch_backend(mechanism: "FeatureMap", shape: Shape) -> str:
    """Return the torch backend with the fewest multiplications."""
    if shape.channel_gate:
        return "chunked"  # the definition forms an exponential per pair and channel
    quadratic, chunked = (sum(executed(mechanism, shape, form).values()) for form in ("reference", "chunked"))
    return "reference" if quadratic <= chunked else "chunked"


def chunk_size(mechanism: "KeySums", key_dim: int, *, channel_gate: bool = False) -> int:
    """Return a size whose features fit in a CPU's cache; larger where reading the state costs more."""
    if mechanism.chunk is not None:
        return mechanism.chunk
    if channel_gate:
        return 64  # a channel gate rescales all earlier keys of a chunk for each block of queries
    return 128 if mechanism.feature_dim(key_dim) <= 256 else 256
