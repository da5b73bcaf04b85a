"""Equally long rows of a token file, in an order that is a pure function of (seed, step).

The first epoch goes through the file block by block, in the order of the text and shuffled within each block, so that
it can begin while the rest is still being tokenized; every later one is shuffled as a whole. The epochs stand in a row
and are cut where a batch is full. A row is known by the number of its first token.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from qkv.data.files.token_file import Block, TokenFile
from qkv.random import derive_seed, uniforms
from qkv.storage import QkvError


class TokenRows:
    """Batches of rows of `length` tokens and the one that follows."""

    def __init__(self, file: TokenFile, length: int, batch_size: int, seed: int):
        if length < 1 or batch_size < 1:
            raise ValueError(f"length and batch_size must be at least 1, got {length} and {batch_size}")
        self.file, self.length, self.batch_size, self.seed = file, length, batch_size, seed
        self._held: tuple[tuple[int, int], Tensor] | None = None

    def batch(self, step: int) -> list[int]:
        """The first tokens of the rows of batch number `step`."""
        if step < 0:
            raise ValueError(f"step must be at least 0, got {step}")
        first = step * self.batch_size
        found: list[int] = []
        while len(found) < self.batch_size:
            rows, start = self._stretch(first + len(found))
            found += rows[start : start + self.batch_size - len(found)].tolist()
        return found

    def read(self, first: int) -> Tensor:
        """The `length` + 1 tokens of a row."""
        return self.file.read(first, self.length + 1)

    def _stretch(self, place: int) -> tuple[Tensor, int]:
        """The shuffled rows of that block, or of that later epoch, in which row number `place` of all stands."""
        total, number = 0, 0
        while True:
            blocks = self.file.blocks(number + 1)
            if number >= len(blocks):
                break
            rows = _rows_in(blocks[number], self.length)
            if place < total + rows:
                return self._shuffled(0, number, blocks), place - total
            total, number = total + rows, number + 1
        if not total:
            raise QkvError(f"the text is shorter than one row of {self.length} tokens", self.file.folder)
        epoch, start = divmod(place, total)
        return self._shuffled(epoch, -1, blocks), start

    def _shuffled(self, epoch: int, block: int, blocks: Sequence[Block]) -> Tensor:
        if self._held is None or self._held[0] != (epoch, block):
            wanted = blocks if block < 0 else [blocks[block]]
            firsts = torch.cat([_firsts(one, self.length) for one in wanted])
            key = derive_seed(self.seed, "order of the rows", epoch, block)
            self._held = (epoch, block), firsts[uniforms(key, torch.arange(len(firsts))).argsort(stable=True)]
        return self._held[1]


def _rows_in(block: Block, length: int) -> int:
    """Rows that cover a block; none if it is shorter than one."""
    targets = block.end - block.first - 1
    return -(-targets // length) if targets >= length else 0


def _firsts(block: Block, length: int) -> Tensor:
    """The last row ends with the block, and may begin in the one before."""
    firsts = block.first + length * torch.arange(_rows_in(block, length))
    return firsts.clamp(max=block.end - length - 1)
