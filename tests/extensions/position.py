"""The parity of the position as a bias, as an example of a scheme: bias(i, j) = -1 where i - j is odd."""

from qkv.positions.base import Positions, Sizes, register
from qkv.shapes import Bias, KeyIndex, Queries, QueryIndex


@register("parity")
class Parity(Positions):
    """A penalty on odd distances."""

    gives = frozenset({"bias"})
    relative = True

    @classmethod
    def from_sizes(cls, sizes: Sizes) -> "Parity":
        """Build the scheme; it has no sizes."""
        return cls()

    def bias(self, q: Queries, query_index: QueryIndex, key_index: KeyIndex) -> Bias:
        """Return the penalty: (1, heads, queries, keys)."""
        odd = (query_index[:, None] - key_index).abs() % 2
        return -odd.to(q.dtype).expand(1, q.shape[1], -1, -1)
