"""An alignment as panels for `rectangles`."""

from collections.abc import Sequence

from qkv.draw.heatmap import Panel
from qkv.explain import Alignment


def alignment_panels(alignment: Alignment, *, heads: bool = False) -> list[Panel]:
    """The mean over blocks and heads; with `heads`, every head of every block instead."""
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
