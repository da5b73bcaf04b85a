"""Rows of equal length from token shards, in an order that is a pure function of (seed, step).

Row r is the tokens [r length, (r + 1) length], so every token but the first is predicted in one row. Fewer than
`length` tokens at the end of the corpus are left over. Each epoch has each row exactly once:

    1. the rows are counted from a random one, so that the borders of the blocks differ between epochs
    2. blocks of neighboring rows, 1 MiB or less, are put in a random order, which `permute` computes block by block
    3. the rows of 64 blocks that follow each other in that order are shuffled together

So memory and the time to find a batch do not grow with the corpus, and training reads from 64 places of it at a time.
Epochs follow each other without a gap; a batch may hold rows of two.
"""

import torch
from torch import Tensor

from qkv.data.shards.token_shards import TokenShards
from qkv.errors import QkvError
from qkv.random import derive_seed, permute, uniforms

BLOCK_TOKENS = 2**19
BLOCK_ROWS = 2**12
"""Most tokens and rows of a block."""
WINDOW_BLOCKS = 64
"""Blocks that are shuffled together."""


class RowOrder:
    """The order of `count` rows in each epoch; only one window of it is in memory."""

    def __init__(self, count: int, block: int, seed: int, window: int = WINDOW_BLOCKS):
        self.count, self.block, self.seed, self.window = count, block, seed, window
        self._cached: tuple[tuple[int, int], Tensor] | None = None

    def rows(self, first: int, count: int) -> list[int]:
        """Return the rows at the places [first, first + count), counted through all epochs."""
        found: list[int] = []
        while len(found) < count:
            epoch, place = divmod(first + len(found), self.count)
            number, start = divmod(place, self.block * self.window)
            found += self._window(epoch, number)[start : start + count - len(found)].tolist()
        return found

    def _window(self, epoch: int, number: int) -> Tensor:
        """Return the rows of a window in their order."""
        if self._cached is None or self._cached[0] != (epoch, number):
            size = self.block * self.window
            places = torch.arange(number * size, min((number + 1) * size, self.count))
            whole = self.count // self.block  # the last block may be smaller: it stays the last
            blocks = torch.arange(number * self.window, min((number + 1) * self.window, whole))
            key = derive_seed(self.seed, "order of the blocks", epoch)
            order = torch.cat((permute(key, blocks, whole), torch.tensor([whole]))) if whole else torch.tensor([0])
            rows = order[places // self.block - number * self.window] * self.block + places % self.block
            rows = (rows + derive_seed(self.seed, "first row of an epoch", epoch)) % self.count
            key = derive_seed(self.seed, "order in a window", epoch, number)
            shuffled = rows[uniforms(key, torch.arange(len(rows))).argsort(stable=True)]
            self._cached = (epoch, number), shuffled
        return self._cached[1]


class ShardRows:
    """Batches of rows of `length` tokens plus the next token."""

    def __init__(self, shards: TokenShards, length: int, batch_size: int, seed: int):
        if length < 1 or batch_size < 1:
            raise ValueError(f"length and batch_size must be at least 1, got {length} and {batch_size}")
        self.shards, self.length, self.batch_size = shards, length, batch_size
        self.count = (len(shards) - 1) // length
        """Rows in an epoch."""
        if not self.count:
            raise QkvError(f"the text is shorter than one row of {length} tokens", shards.folder)
        self._order = RowOrder(self.count, max(min(BLOCK_TOKENS // length, BLOCK_ROWS), 1), seed)

    def batch(self, step: int) -> list[int]:
        """Return the rows of batch `step`."""
        if step < 0:
            raise ValueError(f"step must be at least 0, got {step}")
        return self._order.rows(step * self.batch_size, self.batch_size)

    def read(self, row: int) -> Tensor:
        """Return the `length` + 1 tokens of a row."""
        return self.shards.read(row * self.length, self.length + 1)
