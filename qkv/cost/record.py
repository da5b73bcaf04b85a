"""Cost records: named terms, exact integers, no rounding.

A *multiplication* is one scalar multiplication inside a matrix product (a FLOP count is twice
that). Each term comes twice: `needed` is what the formula asks for, `executed` is what the code
runs, with the halves of a causal square that a kernel computes and throws away.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Shape:
    """The sizes of one attention call, in the words of `qkv.shapes`."""

    batch: int
    heads: int
    queries: int
    keys: int
    key_dim: int
    value_dim: int
    key_heads: int | None = None
    """Heads of keys and values; None means as many as `heads`."""
    causal: bool = False
    decay: bool = False
    """Whether weights fade with distance, at a rate of its own for each query head."""
    element_bytes: int = 4
    """Bytes of one number of q, k and v."""

    def __post_init__(self) -> None:
        for name in ("batch", "heads", "queries", "keys", "key_dim", "value_dim", "key_heads"):
            size = getattr(self, name)
            if isinstance(size, int) and size < 0:
                raise ValueError(f"{name} must be 0 or more, got {size}")
        if self.key_heads is not None and (self.key_heads == 0 or self.heads % self.key_heads):
            raise ValueError(f"key_heads={self.key_heads} must divide heads={self.heads}")

    @property
    def rows(self) -> int:
        """Query heads of all sequences."""
        return self.batch * self.heads

    @property
    def key_rows(self) -> int:
        """Key heads of all sequences."""
        return self.batch * (self.heads if self.key_heads is None else self.key_heads)


@dataclass(frozen=True)
class Span:
    """The sizes of one call of a layer or a model: so many tokens of so many sequences."""

    batch: int
    time: int
    """Tokens of each sequence; of a model that maps one to another, those of the target."""
    context: int | None = None
    """Tokens of another sequence that is looked at: the source."""
    causal: bool = False
    element_bytes: int = 4
    """Bytes of one number that is kept while decoding."""

    @property
    def tokens(self) -> int:
        """Tokens of all sequences."""
        return self.batch * self.time


def causal_pairs(queries: int, keys: int, window: int | None = None) -> int:
    """How many (query, key) pairs a causal mask leaves, the queries being the last of the keys.

    Query i stands at position p = keys - queries + i and sees min(p + 1, window) keys.
    """
    window = window or keys

    def seen_by_first(queries: int) -> int:
        ramp = min(queries, window)
        return ramp * (ramp + 1) // 2 + window * max(queries - window, 0)

    return seen_by_first(keys) - seen_by_first(keys - queries)


@dataclass(frozen=True)
class Cost:
    """Named terms of one call. Costs add up with `+` and repeat with `*`."""

    needed: dict[str, int] = field(default_factory=dict)
    """Multiplications the formula asks for."""
    executed: dict[str, int] = field(default_factory=dict)
    """Multiplications the code runs."""
    parameters: dict[str, int] = field(default_factory=dict)
    """Learned numbers."""
    state: dict[str, int] = field(default_factory=dict)
    """Bytes carried from token to token when decoding."""

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(*(_merge(mine, theirs) for mine, theirs in zip(self._ledgers, other._ledgers, strict=True)))

    def __mul__(self, times: int) -> "Cost":
        return Cost(*({name: times * count for name, count in ledger.items()} for ledger in self._ledgers))

    __rmul__ = __mul__

    def within(self, part: str) -> "Cost":
        """The same as a part of something larger: every term is named after the part."""
        return Cost(*({f"{part}.{name}": count for name, count in ledger.items()} for ledger in self._ledgers))

    @property
    def _ledgers(self) -> tuple[dict[str, int], ...]:
        return self.needed, self.executed, self.parameters, self.state


def _merge(left: dict[str, int], right: dict[str, int]) -> dict[str, int]:
    return {name: left.get(name, 0) + right.get(name, 0) for name in left | right}
