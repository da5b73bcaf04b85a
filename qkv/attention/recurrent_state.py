"""The state of mechanisms that sum over keys and values: fixed size, however many tokens came.

It takes the role of the KV cache, as the state of a linear recurrence: S += phi(k) v', z += phi(k).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from qkv.attention.base import State
from qkv.attention.state import check_joinable, join_rows
from qkv.shapes import Rows


@dataclass
class RecurrentState(State):
    """Sums over the features of all keys and their values.

    A step returns new sums. The exception is a GPU kernel under `torch.inference_mode`, which updates them in place:
    such a state can be continued only once (`select` copies, to branch).
    """

    kv_sum: Tensor
    """S = sum phi(k) v': (batch, key_heads, features, value_dim)."""
    k_sum: Tensor | None = None
    """z = sum phi(k): (batch, key_heads, features, 1); None for kinds that do not normalize."""
    length: int = 0
    _consumed: bool = field(default=False, repr=False, compare=False)

    @classmethod
    def from_sums(cls, sums: Sequence[Tensor], length: int = 0) -> "RecurrentState":
        """Build a state from `sums` of another one."""
        return cls(sums[0], sums[1] if len(sums) > 1 else None, length)

    @property
    def sums(self) -> tuple[Tensor, ...]:
        """(kv_sum, k_sum), or (kv_sum,) for kinds that do not normalize."""
        return (self.kv_sum,) if self.k_sum is None else (self.kv_sum, self.k_sum)

    def require_unconsumed(self) -> None:
        """Raise if a step has updated these sums in place."""
        if self._consumed:
            raise ValueError("this State was already continued in place; branch from it with select(rows) before")

    def consume(self) -> None:
        """Mark the sums as updated in place by the next state."""
        self._consumed = True

    @property
    def bytes(self) -> int:
        """Bytes of the sums: the same after one token as after a million."""
        return sum(x.nbytes for x in self.sums)

    @property
    def addressable_keys(self) -> int:
        """Always 0: past keys are summed, so that none can be attended to alone."""
        return 0

    def preserved(self) -> "RecurrentState":
        """Return the state itself, or on a GPU, where a kernel may update the sums in place, a copy."""
        return self.fork() if self.kv_sum.is_cuda else self

    def select(self, rows: Rows) -> "RecurrentState":
        """Return a copy of these batch rows."""
        self.require_unconsumed()
        return RecurrentState.from_sums([x[rows] for x in self.sums], self.length)

    def tensors(self) -> dict[str, Tensor]:
        """Return the sums and the length."""
        self.require_unconsumed()
        named = zip(("kv_sum", "k_sum"), self.sums, strict=False)
        return {**dict(named), "length": torch.tensor(self.length)}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> "RecurrentState":
        """Return a state of these sums."""
        k_sum = None if self.k_sum is None else tensors["k_sum"]
        return RecurrentState(tensors["kv_sum"], k_sum, int(tensors["length"]))

    def join(self, *others: "RecurrentState") -> "RecurrentState":
        """Return one state of all rows: sums have no places, so none is padded."""
        states = (self, *others)
        check_joinable(states)
        for state in states:
            state.require_unconsumed()
        if len({len(state.sums) for state in states}) > 1:
            raise ValueError("states cannot be joined: only some have k_sum, the sum of kinds that normalize")
        named = zip(("kv_sum", "k_sum"), zip(*(state.sums for state in states), strict=True), strict=False)
        sums = [join_rows(name, parts) for name, parts in named]
        return RecurrentState.from_sums(sums, max(state.length for state in states))

    def put(self, rows: Rows, other: "RecurrentState") -> "RecurrentState":
        """Write all rows of `other` over these rows, in place."""
        self.require_unconsumed()
        other.require_unconsumed()
        for mine, theirs in zip(self.sums, other.sums, strict=True):
            mine[rows] = theirs
        self.consume()
        return RecurrentState.from_sums(self.sums, max(self.length, other.length))

    def drop_places(self, count: int) -> "RecurrentState":
        """Return a copy of the sums after `count` tokens fewer."""
        self.require_unconsumed()
        if not 0 <= count <= self.length:
            raise ValueError(f"count must be from 0 to length={self.length}, got {count}")
        return RecurrentState.from_sums([x.clone() for x in self.sums], self.length - count)
