"""Alignments as panels for `rectangular_heatmaps`."""

from collections.abc import Sequence

from qkv.draw.heatmap import Panel
from qkv.explain import Alignment


def alignment_panels(alignment: Alignment, *, heads: bool = False) -> list[Panel]:
    """Return one panel with the mean over blocks and heads; with `heads`, one panel per head instead."""
    if not heads:
        return [_panel("mean of all heads", alignment.weights)]
    return [
        _panel(f"block {b + 1}, head {h + 1}", matrix)
        for b, block in enumerate(alignment.blocks)
        for h, matrix in enumerate(block)
    ]


def _panel(title: str, matrix: Sequence[Sequence[float]]) -> Panel:
    largest = max((value for row in matrix for value in row), default=0.0)
    return Panel(title, matrix, f"largest: {largest:.2f}")
