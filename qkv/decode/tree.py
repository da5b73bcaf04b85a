"""The search tree of a beam, as plain data: `json.dumps(dataclasses.asdict(tree))` writes it down."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Node:
    """One continuation that a beam looked at."""

    parent: int | None
    """Place of its parent among the nodes; None for the root."""
    token: int
    log_probability: float
    """Of the whole path to here."""
    step: int
    """Tokens of the path to here; 0 for the root, unless some were written before the search began."""
    kept: bool
    """Whether it was among the best of its step."""
    finished: bool
    """Whether it was kept and is END."""


@dataclass(frozen=True)
class SearchTree:
    """Everything one beam looked at: for each live path its best continuations, kept or not.

    A kept node without children was still alive when the search was decided, or had come to END.
    """

    nodes: tuple[Node, ...]
    """The root, START, comes first; a parent always before its children."""
    best: tuple[int, ...]
    """The nodes where the hypotheses end, best first."""

    def path(self, node: int) -> list[int]:
        """Tokens from the root, without it, to this node."""
        return trace(self.nodes, node)


def trace(nodes: tuple[Node, ...] | list[Node], place: int) -> list[int]:
    """Tokens on the way from the root, without it, to the node at this place."""
    tokens = []
    node = nodes[place]
    while node.parent is not None:
        tokens.append(node.token)
        node = nodes[node.parent]
    return tokens[::-1]
