"""Beam search and greedy search in one tree: where they diverge, and by how much.

    search_tree(model, source, limits, beams=4)

The greedy path is merged into the beam's tree; nodes that the beam never scored are added and marked. The winner is
scored again by one forward pass over the whole answer, without a KV cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from qkv.decode import Node, SearchLimits, beam_with_trees, greedy
from qkv.decode.beam import DecodingPrefix
from qkv.decode.protocol import Inputs
from qkv.decode.stepper import Stepper
from qkv.explain.alignment import eval_mode


@dataclass(frozen=True)
class SearchNode:
    """A node of the tree of both searches."""

    parent: int | None
    token: int
    token_log_probability: float
    """log p(token | path to its parent)"""
    log_probability: float
    """log p of the whole path."""
    step: int
    kept: bool
    finished: bool
    seen_by_beam: bool
    """Whether the beam scored it; False only for nodes of the greedy path."""
    greedy: bool
    """Whether the greedy path passes through it."""


@dataclass(frozen=True)
class SearchComparison:
    """Beam and greedy search over one source, in one tree."""

    nodes: list[SearchNode]
    """Root first, every parent before its children."""
    best: list[int]
    """Last nodes of the beam's hypotheses, best first."""
    greedy: list[int]
    """Nodes of the greedy path, without the root."""
    rescored: float
    """log p of the winner, from one forward pass over all of it."""


def search_tree(
    model: Any,
    source: Sequence[int],
    limits: SearchLimits,
    *,
    beams: int,
    length_penalty: float = 0.0,
    prefix: Sequence[int] = (),
) -> SearchComparison:
    """Search for an answer by beam and greedily; both must begin with the tokens of `prefix`."""
    if len(prefix) >= limits.max_length:
        raise ValueError(f"prefix must have fewer than max_length={limits.max_length} tokens, got {len(prefix)}")
    if forbidden := [token for token in prefix if token in limits.forbidden]:
        raise ValueError(f"prefix has token {forbidden[0]}, which is never generated")
    with eval_mode(model):
        return _search(model, source, limits, beams, length_penalty, list(prefix))


def _search(
    model: Any, source: Sequence[int], limits: SearchLimits, beams: int, length_penalty: float, prefix: list[int]
) -> SearchComparison:
    inputs = _row(model, source)
    prefixed = _PrefixedModel(model, limits.start, prefix)
    prefix_log_probs = _token_log_probs(model, inputs, prefix, limits)
    start = DecodingPrefix(len(prefix), sum(prefix_log_probs))
    _, (tree,) = beam_with_trees(
        prefixed, inputs, None, limits, beams=beams, n_best=beams, length_penalty=length_penalty, prefix=start
    )
    (walked,) = greedy(prefixed, inputs, None, replace(limits, max_length=limits.max_length - len(prefix)))
    nodes = _prefix_nodes(prefix_log_probs, prefix, limits)
    indices = _add_beam(tree.nodes, nodes)
    path = [*walked.tokens, *([limits.end] if walked.finished else [])]
    log_probs = _token_log_probs(model, inputs, [*prefix, *path], limits)[len(prefix) :]
    greedy_path = _add_greedy(nodes, path, log_probs, len(prefix), limits)
    best = [indices[node] for node in tree.best]
    answer = [*prefix, *tree.path(tree.best[0])]
    return SearchComparison(nodes, best, greedy_path, score_answer(model, source, answer, limits))


def next_token_log_probs(model: Any, source: Sequence[int], prefix: Sequence[int], limits: SearchLimits) -> list[float]:
    """Return log p of every token after this prefix; -inf for forbidden tokens."""
    with torch.inference_mode(), eval_mode(model):
        stepper = Stepper(model, _row(model, source), None, limits)
        log_probs = stepper.step([0], [limits.start])
        for token in prefix:
            log_probs = stepper.step([0], [token])
    return log_probs[0].tolist()


def score_answer(model: Any, source: Sequence[int], answer: Sequence[int], limits: SearchLimits) -> float:
    """Return log p of this answer, END included if present, from one forward pass without a KV cache."""
    given = _row(model, [limits.start, *answer[:-1]])
    with torch.no_grad(), eval_mode(model):
        logits = model(_row(model, source), given)[0]
    logits = logits.index_fill(-1, torch.tensor(limits.forbidden, device=logits.device), -torch.inf)
    targets = _row(model, answer)[0]
    return float(logits.float().log_softmax(-1).gather(-1, targets[:, None]).sum())


def _row(model: Any, tokens: Sequence[int]) -> Tensor:
    """Return the tokens as a batch of one, on the device of the model."""
    return torch.tensor([list(tokens)], device=next(model.parameters()).device)


class _PrefixedModel:
    """A model that has already generated a prefix when its search begins."""

    def __init__(self, model: Any, start_token: int, prefix: list[int]):
        self.model, self.prefix = model, prefix
        self.before = [start_token, *prefix][: len(prefix)]

    def start(self, inputs: Inputs, mask: Any) -> Any:
        state = self.model.start(inputs, mask)
        for token in self.before:
            _, state = self.model.step(torch.full((inputs.shape[0],), token, device=inputs.device), state)
        self.first = True
        return state

    def step(self, tokens: Any, state: Any) -> Any:
        if self.first and self.prefix:  # the search begins with START; the last token of the prefix replaces it
            tokens = torch.full_like(tokens, self.prefix[-1])
        self.first = False
        return self.model.step(tokens, state)


def _token_log_probs(model: Any, inputs: Inputs, path: list[int], limits: SearchLimits) -> list[float]:
    """Return log p of each token of a path, computed step by step."""
    log_probs = []
    with torch.inference_mode():
        stepper = Stepper(model, inputs, None, limits)
        last = limits.start
        for token in path:
            log_probs.append(float(stepper.step([0], [last])[0, token]))
            last = token
    return log_probs


def _prefix_nodes(log_probs: list[float], prefix: list[int], limits: SearchLimits) -> list[SearchNode]:
    """Return the root and the nodes of the forced prefix."""
    root = SearchNode(None, limits.start, 0.0, 0.0, 0, kept=True, finished=False, seen_by_beam=True, greedy=True)
    nodes = [root]
    for step, (token, log_prob) in enumerate(zip(prefix, log_probs, strict=True), 1):
        total = nodes[-1].log_probability + log_prob
        nodes.append(
            SearchNode(
                step - 1, token, log_prob, total, step, kept=True, finished=False, seen_by_beam=True, greedy=True
            )
        )
    return nodes


def _add_beam(beam_nodes: tuple[Node, ...], nodes: list[SearchNode]) -> list[int]:
    """Add the beam's nodes below the last one; return the index of each."""
    indices = [len(nodes) - 1]
    for node in beam_nodes[1:]:
        assert node.parent is not None
        log_prob = node.log_probability - beam_nodes[node.parent].log_probability
        parent, total = indices[node.parent], node.log_probability
        nodes.append(SearchNode(parent, node.token, log_prob, total, node.step, node.kept, node.finished, True, False))
        indices.append(len(nodes) - 1)
    return indices


def _add_greedy(
    nodes: list[SearchNode], path: list[int], log_probs: list[float], start: int, limits: SearchLimits
) -> list[int]:
    """Mark the greedy path below node `start`, adding nodes that the beam did not score; return its indices."""
    current, indices = start, list(range(1, start + 1))
    for token, log_prob in zip(path, log_probs, strict=True):
        children = [n for n, node in enumerate(nodes) if node.parent == current and node.token == token]
        if children:
            nodes[children[0]] = replace(nodes[children[0]], greedy=True)
            current = children[0]
        else:
            total, step = nodes[current].log_probability + log_prob, nodes[current].step + 1
            nodes.append(SearchNode(current, token, log_prob, total, step, False, token == limits.end, False, True))
            current = len(nodes) - 1
        indices.append(current)
    return indices
