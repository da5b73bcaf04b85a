"""Rows of equal length from a token file, in an order that is a pure function of (seed, step).

The first epoch takes the blocks in file order and shuffles within each block, so it can start while the rest is still
being tokenized. Later epochs are shuffled globally. Epochs are concatenated before they are split into batches. A row
is identified by the offset of its first token.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from qkv.data.files.token_file import TokenBlock, TokenFile
from qkv.errors import QkvError
from qkv.random import derive_seed, uniforms


class TokenRows:
    """Batches of rows of `length` tokens plus the next token."""

    def __init__(self, file: TokenFile, length: int, batch_size: int, seed: int):
        if length < 1 or batch_size < 1:
            raise ValueError(f"length and batch_size must be at least 1, got {length} and {batch_size}")
        self.file, self.length, self.batch_size, self.seed = file, length, batch_size, seed
        self._cached: tuple[tuple[int, int], Tensor] | None = None

    def batch(self, step: int) -> list[int]:
        """Return the offsets of the rows of batch `step`."""
        if step < 0:
            raise ValueError(f"step must be at least 0, got {step}")
        first = step * self.batch_size
        offsets: list[int] = []
        while len(offsets) < self.batch_size:
            rows, start = self._find_rows(first + len(offsets))
            offsets += rows[start : start + self.batch_size - len(offsets)].tolist()
        return offsets

    def read(self, first: int) -> Tensor:
        """Return the `length` + 1 tokens of a row."""
        return self.file.read(first, self.length + 1)

    def _find_rows(self, row: int) -> tuple[Tensor, int]:
        """Return the shuffled rows that contain `row` (of a block or, after epoch 0, of all) and its index in them."""
        total, number = 0, 0
        while True:
            blocks = self.file.blocks(number + 1)
            if number >= len(blocks):
                break
            rows = _rows_in(blocks[number], self.length)
            if row < total + rows:
                return self._shuffle(0, number, blocks), row - total
            total, number = total + rows, number + 1
        if not total:
            raise QkvError(f"the text is shorter than one row of {self.length} tokens", self.file.folder)
        epoch, start = divmod(row, total)
        return self._shuffle(epoch, -1, blocks), start

    def _shuffle(self, epoch: int, block: int, blocks: Sequence[TokenBlock]) -> Tensor:
        """Return the row offsets of one block, or of all with block -1, in the order of this epoch."""
        if self._cached is None or self._cached[0] != (epoch, block):
            chosen = blocks if block < 0 else [blocks[block]]
            offsets = torch.cat([_row_offsets(one, self.length) for one in chosen])
            key = derive_seed(self.seed, "order of the rows", epoch, block)
            order = uniforms(key, torch.arange(len(offsets))).argsort(stable=True)
            self._cached = (epoch, block), offsets[order]
        return self._cached[1]


def _rows_in(block: TokenBlock, length: int) -> int:
    """Return how many rows cover a block; 0 if it is shorter than one row."""
    targets = block.end - block.first - 1
    return -(-targets // length) if targets >= length else 0


def _row_offsets(block: TokenBlock, length: int) -> Tensor:
    """Return the offsets of a block's rows; the last row ends with the block and may overlap the one before."""
    offsets = block.first + length * torch.arange(_rows_in(block, length))
    return offsets.clamp(max=block.end - length - 1)
