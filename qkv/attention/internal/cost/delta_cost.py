"""Multiplications of the delta rule, by form."""

from qkv.attention.internal.channel_pairs import channel_multiplications
from qkv.attention.internal.delta_rule import inverse_multiplications
from qkv.attention.internal.layout import state_rows
from qkv.cost import Shape


def needed(shape: Shape) -> dict[str, int]:
    """Return the multiplications that predict and write every value and read the state for each query."""
    rows, size = state_rows(shape), shape.key_dim * shape.value_dim
    return {
        "predict": rows * shape.keys * size,
        "write": rows * shape.keys * size,
        "read": shape.rows * shape.queries * size,
    }


def reference(shape: Shape) -> dict[str, int]:
    """Return the multiplications of the definition."""
    length, rows = shape.keys, shape.rows
    return {
        "scores": rows * length**2 * shape.key_dim,
        "key pairs": rows * length**2 * shape.key_dim,
        "solve": rows * length * (length * (length - 1) // 2),
        "values": rows * length**2 * shape.value_dim,
    }


def chunked(shape: Shape, chunk: int) -> dict[str, int]:
    """Return the multiplications of the chunks."""
    # not divmod, which torch.compile cannot trace for a symbolic length
    whole, rest = shape.queries // chunk, shape.queries % chunk
    inside, last = (_inside(shape, time) for time in (chunk, rest))
    return {**needed(shape), **{name: whole * inside[name] + last[name] for name in inside}}


def summary(shape: Shape, chunk: int) -> int:
    """Return the multiplications of the chunks without queries, whose values have key_dim more columns."""
    rows, width = state_rows(shape), shape.value_dim + shape.key_dim
    sizes = [chunk] * (shape.queries // chunk) + [shape.queries % chunk]
    pieces = zip((_inside(shape, time) for time in sizes), sizes, strict=True)
    chunks = sum(x["key pairs"] + x["inverse"] + rows * time**2 * width for x, time in pieces)
    return chunks + 2 * rows * shape.keys * shape.key_dim * width


def _inside(shape: Shape, time: int) -> dict[str, int]:
    """Return the multiplications inside one chunk of this many tokens."""
    rows = state_rows(shape)
    pairs = shape.key_dim * (channel_multiplications(time) if shape.channel_gate else time**2)
    return {
        "scores": shape.rows * pairs,
        "key pairs": rows * pairs,
        "inverse": rows * inverse_multiplications(time),
        "errors": rows * time**2 * shape.value_dim,
        "values": shape.rows * time**2 * shape.value_dim,
    }
