"""T5 positions: a learned bias per head for each bucket of distances.

Half of the buckets hold one distance each, the others grow logarithmically up to `max_distance`,
and the last one takes all beyond. With `bidirectional` each direction has half of the buckets.
Otherwise keys after the query are in bucket 0. Paper: https://arxiv.org/abs/1910.10683.
"""

import math

import torch
from torch import Tensor, nn

from qkv.positions.base import Positions, Sizes, register
from qkv.shapes import Bias, KeyIndex, Queries, QueryIndex


@register("t5")
class T5(Positions):
    """A learned table (buckets, heads) of biases."""

    gives = frozenset({"bias"})
    relative = True

    def __init__(self, heads: int, *, bidirectional: bool, buckets: int = 32, max_distance: int = 128):
        super().__init__()
        exact = buckets // (4 if bidirectional else 2)
        if exact < 1 or max_distance <= exact:
            raise ValueError(f"max_distance={max_distance} must exceed {max(exact, 1)} for buckets={buckets}")
        self.table = nn.Embedding(buckets, heads)
        self.bidirectional = bidirectional
        self.max_distance = max_distance
        nn.init.normal_(self.table.weight, std=0.02)

    @classmethod
    def from_sizes(cls, sizes: Sizes) -> "T5":
        """Build a table for these heads and directions."""
        return cls(sizes.heads, bidirectional=sizes.bidirectional)

    def bias(self, q: Queries, query_index: QueryIndex, key_index: KeyIndex) -> Bias:
        """Return the bias of each pair's bucket: (1, heads, queries, keys)."""
        if q.shape[1] != self.table.embedding_dim:
            raise ValueError(f"q has {q.shape[1]} heads, but t5 was built for {self.table.embedding_dim}")
        bucket = self.bucket(key_index - query_index[:, None])
        return self.table(bucket).permute(2, 0, 1)[None].to(q.dtype)

    def bucket(self, offset: Tensor) -> Tensor:
        """Return the bucket of an offset, key position minus query position."""
        buckets, side = self.table.num_embeddings, torch.zeros_like(offset)
        if self.bidirectional:
            buckets //= 2
            side = (offset > 0) * buckets
            distance = offset.abs()
        else:
            distance = (-offset).clamp(min=0)
        exact = buckets // 2
        growth = torch.log(distance.clamp(min=1) / exact) / math.log(self.max_distance / exact)
        far = (exact + (growth * (buckets - exact)).long()).clamp(max=buckets - 1)
        return side + torch.where(distance < exact, distance, far)
