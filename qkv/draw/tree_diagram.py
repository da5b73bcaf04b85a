"""Tree diagrams, root on the left, as self-contained SVG."""

from collections.abc import Sequence
from dataclasses import dataclass

from qkv.draw.text import escape_text, shorten, text_width

_LINE_HEIGHT = 30
_LEVEL_GAP = 70  # width of the edges between two levels
_TOP = 56
_MAX_LABEL_LENGTH = 40


@dataclass(frozen=True)
class TreeNode:
    """A node and the edge from its parent."""

    parent: int | None
    """Index of the parent node; None for the root."""
    label: str
    strong: bool = True
    """Whether it is drawn dark; other nodes are pale."""


@dataclass(frozen=True)
class _Layout:
    """Level and vertical position, in lines, of each node."""

    levels: list[int]
    heights: list[float]


def tree_diagram(nodes: Sequence[TreeNode], title: str) -> str:
    """Return an SVG with the root on the left and the leaves on the right; parents must come before their children."""
    layout = _lay_out(nodes)
    labels = [shorten(node.label, _MAX_LABEL_LENGTH) for node in nodes]
    widths = [
        max((text_width(text) for text, own in zip(labels, layout.levels, strict=True) if own == level), default=0.0)
        for level in range(max(layout.levels) + 1)
    ]
    lefts = [24 + sum(widths[:level]) + level * _LEVEL_GAP for level in range(len(widths))]
    width = round(max(lefts[-1] + widths[-1] + 24, text_width(title, 16) + 40))
    height = round(_TOP + _LINE_HEIGHT * (max(layout.heights) + 1) + 16)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" font-family="system-ui, sans-serif" font-size="13" fill="#1b1f24">',
        f"<title>{escape_text(title)}</title>",
        f'<rect class="paper" width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="28" font-size="16" font-weight="600">{escape_text(title)}</text>',
    ]
    for node, text, level, line in zip(nodes, labels, layout.levels, layout.heights, strict=True):
        x, y = lefts[level], _TOP + _LINE_HEIGHT * (line + 0.5)
        color = "#1b1f24" if node.strong else "#8a929c"
        if node.parent is not None:
            start = lefts[level - 1] + text_width(labels[node.parent]) + 8
            above = _TOP + _LINE_HEIGHT * (layout.heights[node.parent] + 0.5)
            parts.append(
                f'<path d="M{start:.1f} {above:.1f} C{start + 30:.1f} {above:.1f} {x - 38:.1f} {y:.1f} '
                f'{x - 8:.1f} {y:.1f}" fill="none" stroke="{"#c9520a" if node.strong else "#c5cad1"}" '
                f'stroke-width="{2 if node.strong else 1}"/>'
            )
        weight = ' font-weight="600"' if node.strong else ""
        parts.append(f'<text x="{x:.1f}" y="{y:.1f}" dy="0.35em" fill="{color}"{weight}>{escape_text(text)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _lay_out(nodes: Sequence[TreeNode]) -> _Layout:
    """Place leaves one below the other in depth-first order, and parents in the middle of their children."""
    children: list[list[int]] = [[] for _ in nodes]
    levels: list[int] = []
    for index, node in enumerate(nodes):
        if node.parent is not None and not 0 <= node.parent < index:
            raise ValueError(f"nodes[{index}] must come after its parent, got parent {node.parent}")
        if (node.parent is None) != (index == 0):
            raise ValueError(f"nodes must start with the root and have no other, got parent {node.parent}")
        levels.append(0 if node.parent is None else levels[node.parent] + 1)
        if node.parent is not None:
            children[node.parent].append(index)
    if not nodes:
        raise ValueError("nodes must have at least a root, got none")
    heights = [0.0] * len(nodes)
    leaves, stack = 0, [0]
    while stack:  # depth first, so that edges do not cross
        index = stack.pop()
        stack += reversed(children[index])
        if not children[index]:
            heights[index], leaves = leaves, leaves + 1
    for index in reversed(range(len(nodes))):
        if children[index]:
            heights[index] = (heights[children[index][0]] + heights[children[index][-1]]) / 2
    return _Layout(levels, heights)
