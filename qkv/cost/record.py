"""Cost records: named terms, exact integers, no rounding.

A *multiplication* is one scalar multiplication inside a matrix product (FLOPs are twice that). Each
term has two counts: `needed` follows the formula, `executed` is what the code runs, including the
masked half of a causal square that a kernel computes and discards.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Shape:
    """Sizes of one attention call, named as in `qkv.shapes`."""

    batch: int
    heads: int
    queries: int
    keys: int
    key_dim: int
    value_dim: int
    key_heads: int | None = None
    """Heads of keys and values (default: `heads`)."""
    causal: bool = False
    decay: bool = False
    """Whether weights decay with distance, at one rate per query head."""
    gate_heads: int = 0
    """Heads of a gate, which is a decay rate per token: `heads`, `key_heads`, or 0 for no gate."""
    channel_gate: bool = False
    """Whether the gate has a rate for each of the key_dim channels."""
    element_bytes: int = 4
    """Bytes of one element of q, k and v."""

    def __post_init__(self) -> None:
        for name in ("batch", "heads", "queries", "keys", "key_dim", "value_dim", "key_heads"):
            size = getattr(self, name)
            if isinstance(size, int) and size < 0:
                raise ValueError(f"{name} must be 0 or more, got {size}")
        if self.key_heads is not None and (self.key_heads == 0 or self.heads % self.key_heads):
            raise ValueError(f"key_heads={self.key_heads} must divide heads={self.heads}")

    @property
    def rows(self) -> int:
        """Query heads over the batch."""
        return self.batch * self.heads

    @property
    def key_rows(self) -> int:
        """Key heads over the batch."""
        return self.batch * (self.heads if self.key_heads is None else self.key_heads)


@dataclass(frozen=True)
class Span:
    """Sizes of one call of a layer or a model."""

    batch: int
    time: int
    """Tokens per sequence; target tokens in an encoder-decoder model."""
    context: int | None = None
    """Tokens of the source sequence that is cross-attended."""
    causal: bool = False
    element_bytes: int = 4
    """Bytes of one element of the decoding state."""

    @property
    def tokens(self) -> int:
        """Tokens over the batch."""
        return self.batch * self.time


def causal_pairs(queries: int, keys: int, window: int | None = None) -> int:
    """Return the (query, key) pairs that a causal mask leaves; the queries are the last positions of the keys.

    Query i is at position p = keys - queries + i and attends to min(p + 1, window) keys.
    """
    window = window or keys

    def pairs_of_first(queries: int) -> int:
        ramp = min(queries, window)
        return ramp * (ramp + 1) // 2 + window * max(queries - window, 0)

    return pairs_of_first(keys) - pairs_of_first(keys - queries)


@dataclass(frozen=True)
class Cost:
    """Named terms of one call; `+` adds costs, `*` repeats one."""

    needed: dict[str, int] = field(default_factory=dict)
    """Multiplications that the formula needs."""
    executed: dict[str, int] = field(default_factory=dict)
    """Multiplications that the code runs."""
    parameters: dict[str, int] = field(default_factory=dict)
    """Learned values."""
    state: dict[str, int] = field(default_factory=dict)
    """Bytes of decoding state (KV cache or recurrent state)."""

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(*(_merge(mine, theirs) for mine, theirs in zip(self._groups, other._groups, strict=True)))

    def __mul__(self, times: int) -> "Cost":
        return Cost(*({name: times * count for name, count in group.items()} for group in self._groups))

    __rmul__ = __mul__

    def within(self, part: str) -> "Cost":
        """Return the same cost with `part.` prefixed to every term."""
        return Cost(*({f"{part}.{name}": count for name, count in group.items()} for group in self._groups))

    @property
    def _groups(self) -> tuple[dict[str, int], ...]:
        return self.needed, self.executed, self.parameters, self.state


def _merge(left: dict[str, int], right: dict[str, int]) -> dict[str, int]:
    return {name: left.get(name, 0) + right.get(name, 0) for name in left | right}
