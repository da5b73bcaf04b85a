"""A beam search and a greedy one in one tree: where they part, and what it cost.

    search_tree(model, source, limits, beams=4)

The greedy path is drawn into the tree of the beam; where the beam never looked at one of its tokens, a node is added
and marked as not looked at. The winner is scored once more by one pass over the whole answer, without any cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from qkv.decode import Limits, Node, beam_with_trees, greedy
from qkv.decode.beam import Begun
from qkv.decode.protocol import Inputs
from qkv.decode.stepper import Stepper
from qkv.explain.alignment import evaluating


@dataclass(frozen=True)
class Branch:
    """A node of the tree, with what can be said of it here."""

    parent: int | None
    token: int
    own: float
    """log p(token | what came before)"""
    log_probability: float
    """Of the whole path."""
    step: int
    kept: bool
    finished: bool
    looked_at: bool
    """Whether the beam saw it; only greedy nodes may be False."""
    greedy: bool
    """Whether the greedy path goes through it."""


@dataclass(frozen=True)
class BothSearches:
    """Both searches over one source."""

    branches: list[Branch]
    """The root first, a parent always before its children."""
    best: list[int]
    """Where the hypotheses of the beam end, best first."""
    greedy: list[int]
    """The nodes of the greedy path, without the root."""
    rescored: float
    """log p of the winner by one pass over all of it."""


def search_tree(
    model: Any,
    source: Sequence[int],
    limits: Limits,
    *,
    beams: int,
    length_power: float = 0.0,
    prefix: Sequence[int] = (),
) -> BothSearches:
    """Search for an answer by beam and greedily; `prefix` are tokens that both must begin with."""
    if len(prefix) >= limits.max_length:
        raise ValueError(f"prefix has {len(prefix)} tokens; an answer may have {limits.max_length} with its END")
    if never := [token for token in prefix if token in limits.forbidden]:
        raise ValueError(f"prefix has token {never[0]}, which is never written")
    with evaluating(model):
        return _search(model, source, limits, beams, length_power, list(prefix))


def _search(
    model: Any, source: Sequence[int], limits: Limits, beams: int, length_power: float, prefix: list[int]
) -> BothSearches:
    inputs = torch.tensor([list(source)])
    follower = _Prefixed(model, limits.start, prefix)
    start = _own(model, inputs, prefix, limits)
    begun = Begun(len(prefix), sum(start))
    _, (tree,) = beam_with_trees(
        follower, inputs, None, limits, beams=beams, best=beams, length_power=length_power, begun=begun
    )
    (walked,) = greedy(follower, inputs, None, replace(limits, max_length=limits.max_length - len(prefix)))
    branches = _forced(start, prefix, limits)
    places = _beam(tree.nodes, branches)
    path = [*walked.tokens, *([limits.end] if walked.finished else [])]
    own = _own(model, inputs, [*prefix, *path], limits)[len(prefix) :]
    ending = _walk(branches, path, own, len(prefix), limits)
    best = [places[node] for node in tree.best]
    answer = [*prefix, *tree.path(tree.best[0])]
    return BothSearches(branches, best, ending, score_whole(model, source, answer, limits))


def next_tokens(model: Any, source: Sequence[int], prefix: Sequence[int], limits: Limits) -> list[float]:
    """log p of every token after this prefix; -inf for those that are never written."""
    with torch.inference_mode(), evaluating(model):
        stepper = Stepper(model, torch.tensor([list(source)]), None, limits)
        found = stepper.step([0], [limits.start])
        for token in prefix:
            found = stepper.step([0], [token])
    return found[0].tolist()


def score_whole(model: Any, source: Sequence[int], answer: Sequence[int], limits: Limits) -> float:
    """log p of this answer, END included if it is there, by one forward pass: no state, no steps."""
    given = torch.tensor([[limits.start, *answer[:-1]]])
    with torch.no_grad(), evaluating(model):
        logits = model(torch.tensor([list(source)]), given)[0].index_fill(
            -1, torch.tensor(limits.forbidden), -torch.inf
        )
    wanted = torch.tensor(list(answer))
    return float(logits.float().log_softmax(-1).gather(-1, wanted[:, None]).sum())


class _Prefixed:
    """A model that has written some tokens already when its search begins."""

    def __init__(self, model: Any, begin: int, prefix: list[int]):
        self.model, self.prefix = model, prefix
        self.before = [begin, *prefix][: len(prefix)]

    def start(self, inputs: Inputs, mask: Any) -> Any:
        state = self.model.start(inputs, mask)
        for token in self.before:
            _, state = self.model.step(torch.full((inputs.shape[0],), token), state)
        self.first = True
        return state

    def step(self, tokens: Any, state: Any) -> Any:
        if self.first and self.prefix:  # the search begins with START; here the last token of the prefix stands for it
            tokens = torch.full_like(tokens, self.prefix[-1])
        self.first = False
        return self.model.step(tokens, state)


def _own(model: Any, inputs: Inputs, path: list[int], limits: Limits) -> list[float]:
    """log p of each token of a path, step by step."""
    found = []
    with torch.inference_mode():
        stepper = Stepper(model, inputs, None, limits)
        last = limits.start
        for token in path:
            found.append(float(stepper.step([0], [last])[0, token]))
            last = token
    return found


def _forced(own: list[float], prefix: list[int], limits: Limits) -> list[Branch]:
    """The root and the tokens that were forced."""
    root = Branch(None, limits.start, 0.0, 0.0, 0, kept=True, finished=False, looked_at=True, greedy=True)
    branches = [root]
    for step, (token, log) in enumerate(zip(prefix, own, strict=True), 1):
        total = branches[-1].log_probability + log
        one = Branch(step - 1, token, log, total, step, kept=True, finished=False, looked_at=True, greedy=True)
        branches.append(one)
    return branches


def _beam(nodes: tuple[Node, ...], branches: list[Branch]) -> list[int]:
    """Add the nodes of the beam below what is there; gives the place of each."""
    places = [len(branches) - 1]
    for node in nodes[1:]:
        assert node.parent is not None
        own = node.log_probability - nodes[node.parent].log_probability
        above, total = places[node.parent], node.log_probability
        branches.append(Branch(above, node.token, own, total, node.step, node.kept, node.finished, True, False))
        places.append(len(branches) - 1)
    return places


def _walk(branches: list[Branch], path: list[int], own: list[float], start: int, limits: Limits) -> list[int]:
    """Mark the greedy path, adding what the beam did not look at."""
    at, found = start, list(range(1, start + 1))
    for token, log in zip(path, own, strict=True):
        children = [n for n, one in enumerate(branches) if one.parent == at and one.token == token]
        if children:
            branches[children[0]] = replace(branches[children[0]], greedy=True)
            at = children[0]
        else:
            total, step = branches[at].log_probability + log, branches[at].step + 1
            branches.append(Branch(at, token, log, total, step, False, token == limits.end, False, True))
            at = len(branches) - 1
        found.append(at)
    return found
