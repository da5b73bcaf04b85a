"""The state of mechanisms that sum over keys and values: fixed size, however many tokens came.

It takes the role of the KV cache, as the state of a linear recurrence: S += phi(k) v', z += phi(k).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from qkv.attention.base import State
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

    def select(self, rows: Rows) -> "RecurrentState":
        """Return a copy of these batch rows."""
        return RecurrentState.from_sums([x[rows] for x in self.sums], self.length)
