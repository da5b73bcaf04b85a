"""Trees, from left to right, in one SVG file with no outside parts."""

from collections.abc import Sequence
from dataclasses import dataclass

from qkv.draw.text import safe, shorten, text_width

_LINE = 30  # height of a leaf
_GAP = 70  # room for the strokes between two levels
_TOP = 56
_LONGEST_LABEL = 40


@dataclass(frozen=True)
class Branch:
    """One node and the way to it."""

    parent: int | None
    """Place of its parent among the branches; None for the root."""
    label: str
    strong: bool = True
    """Drawn dark; the others are pale."""


@dataclass(frozen=True)
class _Layout:
    """Where each branch stands: its level, and its height in lines."""

    levels: list[int]
    heights: list[float]


def tree(branches: Sequence[Branch], title: str) -> str:
    """An SVG of the root at the left and the leaves at the right; a parent has to come before its children."""
    layout = _lay_out(branches)
    labels = [shorten(branch.label, _LONGEST_LABEL) for branch in branches]
    widths = [
        max((text_width(text) for text, own in zip(labels, layout.levels, strict=True) if own == level), default=0.0)
        for level in range(max(layout.levels) + 1)
    ]
    lefts = [24 + sum(widths[:level]) + level * _GAP for level in range(len(widths))]
    width = round(max(lefts[-1] + widths[-1] + 24, text_width(title, 16) + 40))
    height = round(_TOP + _LINE * (max(layout.heights) + 1) + 16)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" font-family="system-ui, sans-serif" font-size="13" fill="#1b1f24">',
        f"<title>{safe(title)}</title>",
        f'<rect class="paper" width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="28" font-size="16" font-weight="600">{safe(title)}</text>',
    ]
    for branch, text, level, line in zip(branches, labels, layout.levels, layout.heights, strict=True):
        x, y = lefts[level], _TOP + _LINE * (line + 0.5)
        color = "#1b1f24" if branch.strong else "#8a929c"
        if branch.parent is not None:
            start = lefts[level - 1] + text_width(labels[branch.parent]) + 8
            above = _TOP + _LINE * (layout.heights[branch.parent] + 0.5)
            parts.append(
                f'<path d="M{start:.1f} {above:.1f} C{start + 30:.1f} {above:.1f} {x - 38:.1f} {y:.1f} '
                f'{x - 8:.1f} {y:.1f}" fill="none" stroke="{"#c9520a" if branch.strong else "#c5cad1"}" '
                f'stroke-width="{2 if branch.strong else 1}"/>'
            )
        weight = ' font-weight="600"' if branch.strong else ""
        parts.append(f'<text x="{x:.1f}" y="{y:.1f}" dy="0.35em" fill="{color}"{weight}>{safe(text)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _lay_out(branches: Sequence[Branch]) -> _Layout:
    """Leaves stand one below the other in the order of the tree, parents in the middle of their children."""
    children: list[list[int]] = [[] for _ in branches]
    levels: list[int] = []
    for place, branch in enumerate(branches):
        if branch.parent is not None and not 0 <= branch.parent < place:
            raise ValueError(f"branches[{place}] has parent {branch.parent}, which does not come before it")
        if (branch.parent is None) != (place == 0):
            raise ValueError(f"branches must begin with the root and have no other, got parent {branch.parent}")
        levels.append(0 if branch.parent is None else levels[branch.parent] + 1)
        if branch.parent is not None:
            children[branch.parent].append(place)
    if not branches:
        raise ValueError("branches must have at least a root, got none")
    heights = [0.0] * len(branches)
    leaves, stack = 0, [0]
    while stack:  # depth first, so that no stroke crosses another
        place = stack.pop()
        stack += reversed(children[place])
        if not children[place]:
            heights[place], leaves = leaves, leaves + 1
    for place in reversed(range(len(branches))):
        if children[place]:
            heights[place] = (heights[children[place][0]] + heights[children[place][-1]]) / 2
    return _Layout(levels, heights)
