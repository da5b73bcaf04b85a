"""The search tree of a beam as plain data, ready for `json.dumps(dataclasses.asdict(tree))`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Node:
    """A continuation that a beam considered."""

    parent: int | None
    """Index of the parent node; None for the root."""
    token: int
    log_probability: float
    """Log-probability of the whole path to this node."""
    step: int
    """Tokens on the path to this node; 0 for the root, or the length of the prefix."""
    kept: bool
    """Whether it was among the best `beams` of its step."""
    finished: bool
    """Whether it was kept and is END."""


@dataclass(frozen=True)
class SearchTree:
    """All nodes that one beam considered: the best continuations of each live path, kept or not.

    A kept node without children is END, or was still live when the search was decided.
    """

    nodes: tuple[Node, ...]
    """The root, START, is first; every parent comes before its children."""
    best: tuple[int, ...]
    """Indices of the last nodes of the hypotheses, best first."""

    def path(self, node: int) -> list[int]:
        """Return the tokens from the root (exclusive) to this node."""
        return trace(self.nodes, node)


def trace(nodes: tuple[Node, ...] | list[Node], index: int) -> list[int]:
    """Return the tokens from the root (exclusive) to the node at `index`."""
    tokens = []
    node = nodes[index]
    while node.parent is not None:
        tokens.append(node.token)
        node = nodes[node.parent]
    return tokens[::-1]
