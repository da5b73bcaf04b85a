"""The state of mechanisms that fold keys and values into sums: of fixed size, however many tokens came."""

from dataclasses import dataclass, field

from torch import Tensor

from qkv.attention.base import State
from qkv.shapes import Rows


@dataclass
class Memory(State):
    """All keys and values seen, folded into sums of fixed size.

    A step gives new sums, except by a GPU kernel under `torch.inference_mode`: it writes into these, so that a state
    can then be continued only once (`select` copies, to branch).
    """

    sums: tuple[Tensor, ...]
    """sum phi(k) v' (batch, key_heads, features, value_dim) and, if normalized, sum phi(k) (..., features, 1)."""
    length: int = 0
    _continued: bool = field(default=False, repr=False, compare=False)

    def opened(self) -> tuple[Tensor, ...]:
        """The sums, unless they are already somebody else's."""
        if self._continued:
            raise ValueError("this State was continued already, in place; branch from it with select(rows) before")
        return self.sums

    def close(self) -> None:
        """The sums go over to the next state."""
        self._continued = True

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
