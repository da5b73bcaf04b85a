"""The state of mechanisms that fold keys and values into sums: of fixed size, however many tokens came."""

from dataclasses import dataclass

from torch import Tensor

from qkv.attention.base import State
from qkv.shapes import Rows


@dataclass(frozen=True)
class Memory(State):
    """All keys and values seen, folded into sums of fixed size."""

    sums: tuple[Tensor, ...]
    """sum phi(k) v' (batch, key_heads, features, value_dim) and, if normalised, sum phi(k) (..., features, 1)."""
    length: int = 0

    @property
    def bytes(self) -> int:
        """Bytes of the sums: the same after one token as after a million."""
        return sum(x.nbytes for x in self.sums)

    @property
    def reach(self) -> int:
        """No key can be addressed any more."""
        return 0

    def select(self, rows: Rows) -> "Memory":
        """A copy of these sequences."""
        return Memory(tuple(x[rows] for x in self.sums), self.length)
