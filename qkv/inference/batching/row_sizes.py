"""Bytes of a row's state, known before it exists, and groups of rows of similar size.

The state of a model without a KV cache has one size. A KV cache grows, and rows of different lengths that stand side by
side are padded to the longest. So rows are grouped by the length they may reach: one level takes at most half the bytes
of the next, and a row holds less than about twice what it needs.
"""

from typing import Any

import torch

from qkv.cost import Span

SHORTEST = 32
"""Places of the lowest level: below, another group costs more time than it saves memory."""


class RowSizes:
    """The levels of a model: number of places -> bytes of one row."""

    def __init__(self, model: Any):
        dtypes = (x.dtype for x in model.parameters() if x.is_floating_point())
        self._element_bytes = next(dtypes, torch.float32).itemsize
        longest = int(model.config.max_length)
        self.levels = {longest: self._measure(model, longest)}
        self.grows = self._measure(model, 1) < self.levels[longest]
        """Whether a state grows with its length."""
        places = longest // 2
        while places >= SHORTEST and self.grows:
            size = self._measure(model, places)
            if 2 * size <= min(self.levels.values()):
                self.levels[places] = size
            places //= 2

    def _measure(self, model: Any, places: int) -> int:
        return sum(model.cost(Span(1, places, causal=True, element_bytes=self._element_bytes)).state.values())

    def places_for(self, length: int) -> int:
        """Return the places of the lowest level that takes a row of this length."""
        return min(places for places in self.levels if places >= length)

    def bytes_for(self, places: int) -> int:
        """Return the bytes of one row of a level."""
        return self.levels[places]
